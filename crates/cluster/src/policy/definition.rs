//! The CustomResourceDefinitions, made from the types.

use super::{BalancingPolicy, LocalRedirectPolicy};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::Value;

/// Both, in the form in which they are installed.
pub fn definitions() -> [Value; 2] {
    [LocalRedirectPolicy::crd(), BalancingPolicy::crd()].map(plain)
}

/// One file for `kubectl apply`.
pub fn definitions_yaml() -> String {
    let written = |definition: Value| serde_saphyr::to_string(&definition).unwrap_or_default();
    definitions().map(|definition| format!("---\n{}", written(definition))).concat()
}

fn plain(definition: CustomResourceDefinition) -> Value {
    let mut value = serde_json::to_value(definition).unwrap_or_default();
    without_null(&mut value);
    value
}

/// An `Option` here is a field that may be left out. The derive makes it one that may also be null, and to CEL a field
/// that is null is there.
fn without_null(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|key, value| key != "nullable" || !value.is_boolean());
            map.values_mut().for_each(without_null);
        }
        Value::Array(items) => items.iter_mut().for_each(without_null),
        _ => {}
    }
}
