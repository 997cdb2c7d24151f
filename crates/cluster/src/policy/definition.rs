//! Generates the CustomResourceDefinitions from the types.

use super::{BalancingPolicy, LocalRedirectPolicy};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::Value;

/// Both definitions in the form in which they are installed.
pub fn definitions() -> [Value; 2] {
    [LocalRedirectPolicy::crd(), BalancingPolicy::crd()].map(to_value)
}

/// The definition as a YAML document for `kubectl apply`.
pub fn definition_yaml(definition: &Value) -> Result<String, serde_saphyr::SerializeError> {
    Ok(format!("---\n{}", serde_saphyr::to_string(definition)?))
}

fn to_value(definition: CustomResourceDefinition) -> Value {
    let mut value = serde_json::to_value(definition).unwrap_or_default();
    remove_nullable(&mut value);
    value
}

/// Removes `nullable`. An `Option` in the types is a field that may be absent, but the derive also allows null for it.
/// CEL treats a field that is null as present.
fn remove_nullable(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|key, value| key != "nullable" || !value.is_boolean());
            map.values_mut().for_each(remove_nullable);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_nullable),
        _ => {}
    }
}
