//! Clients on the host that dial in a loop: in the default view, in other views and in a cgroup with a view, over TCP
//! and UDP and both families.

use kit::{
    host::{ClientContext, DialClient},
    load::DialProtocol,
};

use super::clusters::{GREEN, MultiClusterHost, NAMES};
use crate::fixture::host_port;

/// A client and the cluster that must answer it.
struct ExpectedClient {
    cluster: &'static str,
    context: ClientContext<'static>,
    client: DialClient,
}

pub struct Clients<'a> {
    host: &'a MultiClusterHost<'a>,
    all: Vec<ExpectedClient>,
}

type ClientConfig = (&'static str, ClientContext<'static>, DialProtocol, usize);

/// Cluster, context, protocol and family (0: IPv4, 1: IPv6).
const CLIENTS: [ClientConfig; 7] = [
    ("blue", ClientContext::Plain, DialProtocol::Tcp, 0),
    ("blue", ClientContext::Plain, DialProtocol::Udp, 1),
    ("blue", ClientContext::View("blue"), DialProtocol::Tcp, 1),
    ("green", ClientContext::View("green"), DialProtocol::Tcp, 0),
    ("green", ClientContext::View("green"), DialProtocol::Tcp, 1),
    ("green", ClientContext::Cgroup(GREEN), DialProtocol::Udp, 0),
    ("red", ClientContext::Plain, DialProtocol::Tcp, 0),
];

/// Number of dials that each client makes at least before its counts are checked.
const MIN_DIALS: u64 = 20;

impl<'a> Clients<'a> {
    pub fn start(host: &'a MultiClusterHost<'a>) -> Clients<'a> {
        Clients::start_for(host, &NAMES)
    }

    pub fn start_for(host: &'a MultiClusterHost<'a>, clusters: &[&str]) -> Clients<'a> {
        let mut clients = Clients { host, all: Vec::new() };
        clusters.iter().for_each(|cluster| clients.add(cluster));
        clients
    }

    /// Starts the clients of this cluster.
    pub fn add(&mut self, cluster: &str) {
        for (cluster, context, protocol, family) in CLIENTS.into_iter().filter(|config| config.0 == cluster) {
            let clusters = self.host.clusters;
            let address = if cluster == "red" { &clusters.red_ips[family] } else { &clusters.shared_ips[family] };
            let target = host_port(address, 80).parse().unwrap();
            let client = clusters.outside.client(&self.host.agent, context, protocol, target).unwrap();
            self.all.push(ExpectedClient { cluster, context, client });
        }
    }

    pub fn remove(&mut self, cluster: &str) {
        self.all.retain(|client| client.cluster != cluster);
    }

    /// Discards the counts so far.
    pub fn reset(&self) {
        self.all.iter().for_each(|client| drop(client.client.take_counts()));
    }

    /// Asserts that since the last check no dial failed or reached a wrong cluster.
    pub fn assert_no_failures(&self, what: &str) {
        self.check(what, |_| true);
    }

    /// Like `assert_no_failures`, for the clients whose cluster does not depend on the order of the file.
    pub fn assert_no_failures_in_views(&self, what: &str) {
        self.check(what, |client| client.context != ClientContext::Plain || client.cluster == "red");
    }

    fn check(&self, what: &str, is_checked: impl Fn(&ExpectedClient) -> bool) {
        let mut errors = Vec::new();
        let (mut dials, mut failed, mut misdirected) = (0, 0, 0);
        for client in self.all.iter().filter(|client| is_checked(client)) {
            client.client.wait_for(MIN_DIALS).unwrap();
            let counts = client.client.take_counts();
            let wrong = counts.unexpected(|name| self.host.clusters.cluster_of(name) == client.cluster);
            (dials, failed, misdirected) = (dials + counts.dials(), failed + counts.failed(), misdirected + wrong);
            if counts.failed() + wrong > 0 {
                errors.push(format!("{} expects {}: {counts:?}", client.client.name, client.cluster));
            }
        }
        self.all.iter().filter(|client| !is_checked(client)).for_each(|client| drop(client.client.take_counts()));
        println!("{what}: {failed} of {dials} dials failed, {misdirected} reached a wrong cluster");
        assert!(errors.is_empty(), "{what}:\n{}", errors.join("\n"));
    }
}
