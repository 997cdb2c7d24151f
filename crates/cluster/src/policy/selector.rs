//! Label selectors, with the checks that the API server applies to its own kinds but not to custom resources.

use super::{rule, schema};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// All requirements must be met. {} selects everything.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct LabelSelector {
    /// Labels and their required values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::labels")]
    pub match_labels: Option<BTreeMap<String, String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub match_expressions: Option<Vec<LabelRequirement>>,
}

/// A requirement on one label.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, KubeSchema)]
#[x_kube(validation = rule::values_needed(), validation = rule::no_values())]
#[serde(rename_all = "camelCase")]
pub struct LabelRequirement {
    #[schemars(length(max = 317))]
    #[x_kube(validation = rule::label_key())]
    pub key: String,
    pub operator: Operator,
    /// The values for In and NotIn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::label_values")]
    pub values: Option<Vec<String>>,
}

#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
pub enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
}
