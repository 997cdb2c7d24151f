//! What the controller was told, checked.

use beeline_cluster::Access;
use ipnet::IpNet;
use std::net::SocketAddr;
use std::time::Duration;

/// Whether policies of different kinds may share an address, port and protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overlap {
    #[default]
    Refuse,
    /// The order decides: LocalRedirectPolicy, then BalancingPolicy.
    Allow,
}

#[derive(Clone, Debug)]
pub struct Settings {
    pub access: Access,
    /// Where node slices, the Lease and the Secret are.
    pub namespace: String,
    /// Where the nodes' reports are.
    pub report_namespace: String,
    /// Who we are among the replicas.
    pub identity: String,
    pub virtual_ranges: Vec<IpNet>,
    pub overlap: Overlap,
    pub webhook: SocketAddr,
    /// What the API server calls us by: DNS names and addresses.
    pub webhook_names: Vec<String>,
    /// The ValidatingWebhookConfiguration that the CA is written into.
    pub configuration: String,
    pub secret: String,
    pub certificate_life: Duration,
    pub lease: String,
    pub lease_duration: Duration,
    /// `None`: no such listener.
    pub health: Option<SocketAddr>,
    /// After the signal to end, the webhook answers this long: until nobody is sent here any more.
    pub drain: Duration,
}
