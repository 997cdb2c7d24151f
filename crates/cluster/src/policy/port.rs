//! The ports of a policy.

use super::{rule, schema};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The protocols that the socket hooks support.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum Transport {
    #[default]
    Tcp,
    Udp,
}

/// A port of the selected pods.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct EndpointPort {
    /// Pairs this port with a port of the frontend. A single pair needs no name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    #[x_kube(validation = rule::label(rule::PORT_NAME))]
    pub name: Option<String>,
    /// A number, or the name of a container port, which is looked up in each pod.
    #[schemars(schema_with = "schema::number_or_name")]
    pub port: IntOrString,
    #[serde(default)]
    pub protocol: Transport,
}

/// A port of fixed addresses. It cannot be a name, because there is no pod to look it up in.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct AddressPort {
    /// Pairs this port with a port of the frontend. A single pair needs no name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    #[x_kube(validation = rule::label(rule::PORT_NAME))]
    pub name: Option<String>,
    #[schemars(range(min = 1, max = 65535))]
    pub port: i32,
    #[serde(default)]
    pub protocol: Transport,
}
