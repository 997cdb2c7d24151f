//! The frontend of a policy: the ClusterIPs of a Service, or a virtual address.

use super::port::Transport;
use super::{rule, schema};
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// Exactly one of serviceMatcher and addressMatcher.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, KubeSchema)]
#[x_kube(validation = rule::one_of("serviceMatcher", "addressMatcher"))]
#[serde(rename_all = "camelCase")]
pub struct Frontend {
    /// The ClusterIPs of a Service. Its load balancer addresses, externalIPs and NodePorts are not affected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_matcher: Option<ServiceMatcher>,
    /// A virtual address within the ranges that the agents allow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address_matcher: Option<AddressMatcher>,
}

#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceMatcher {
    /// The name of a Service in the policy's own namespace.
    #[schemars(length(max = 63))]
    #[x_kube(validation = rule::label("write the name of a Service of the policy's own namespace: a-z, 0-9 and '-'"))]
    pub service_name: String,
    /// The ports of the Service. The default is every port, paired with the ports of the backend by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::dialled_ports")]
    pub to_ports: Option<Vec<FrontendPort>>,
}

#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct AddressMatcher {
    /// An IPv4 or IPv6 address.
    #[schemars(length(max = 39))]
    #[x_kube(validation = rule::address(), validation = rule::dialable())]
    pub ip: String,
    #[schemars(schema_with = "schema::dialled_ports")]
    pub to_ports: Vec<FrontendPort>,
}

/// A port that is dialled.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct FrontendPort {
    /// Pairs this port with a port of the backend. A single pair needs no name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    #[x_kube(validation = rule::label(rule::PORT_NAME))]
    pub name: Option<String>,
    #[schemars(range(min = 1, max = 65535))]
    pub port: i32,
    #[serde(default)]
    pub protocol: Transport,
}
