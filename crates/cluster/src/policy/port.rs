//! Ports of backends.

use super::{rule, schema};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a socket hook can see.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum Transport {
    #[default]
    Tcp,
    Udp,
}

/// A port of the pods that are chosen.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct EndpointPort {
    /// Pairs it with a port of the frontend; a single pair needs none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    #[x_kube(validation = rule::label(rule::PORT_NAME))]
    pub name: Option<String>,
    /// A number, or the name of a container port, looked up pod by pod.
    #[schemars(schema_with = "schema::number_or_name")]
    pub port: IntOrString,
    #[serde(default)]
    pub protocol: Transport,
}

/// A port of the addresses that are given: nobody could look a name up.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct AddressPort {
    /// Pairs it with a port of the frontend; a single pair needs none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    #[x_kube(validation = rule::label(rule::PORT_NAME))]
    pub name: Option<String>,
    #[schemars(range(min = 1, max = 65535))]
    pub port: i32,
    #[serde(default)]
    pub protocol: Transport,
}
