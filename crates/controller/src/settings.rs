//! The checked settings of the controller.

use beeline_cluster::Access;
use ipnet::IpNet;
use std::net::SocketAddr;
use std::time::Duration;

/// Whether policies of different kinds may share an address, port and protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overlap {
    #[default]
    Refuse,
    /// LocalRedirectPolicy takes precedence over BalancingPolicy.
    Allow,
}

#[derive(Clone, Debug)]
pub struct ControllerSettings {
    pub access: Access,
    /// Namespace of the node slices, the Lease and the certificate Secret.
    pub namespace: String,
    /// Namespace of the nodes' reports.
    pub report_namespace: String,
    /// Identity of this replica in the Lease.
    pub identity: String,
    pub virtual_address_cidrs: Vec<IpNet>,
    pub overlap: Overlap,
    pub webhook_address: SocketAddr,
    /// DNS names and addresses in the webhook's certificate.
    pub webhook_names: Vec<String>,
    /// Name of the ValidatingWebhookConfiguration that gets the CA certificates.
    pub webhook_configuration: String,
    /// Name of the certificate Secret.
    pub secret: String,
    pub certificate_lifetime: Duration,
    /// Name of the Lease.
    pub lease: String,
    pub lease_duration: Duration,
    /// `None` disables the health listener.
    pub health_address: Option<SocketAddr>,
    /// How long the webhook keeps answering after the signal to terminate, until no requests are routed to it any more.
    pub drain: Duration,
    /// The commit of the running binary, for the metric `beeline_build_info`.
    pub commit: &'static str,
}
