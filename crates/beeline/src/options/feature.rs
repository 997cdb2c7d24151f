//! The cargo feature `outside`, and the options and commands that need it. The image of the nodes is built without it.

use super::Options;
use super::value::OrOff;
use anyhow::anyhow;
use beeline_model::rules::HostRole;

/// Whether this binary contains what only hosts outside and at the edge need.
pub const OUTSIDE: bool = cfg!(feature = "outside");

/// The error of an option or command that this binary does not have.
pub fn left_out(subject: &str) -> anyhow::Error {
    anyhow!(
        "{subject}: this binary is built for the Nodes of one cluster, without the feature `outside`; use the binary of the \
         Debian package, or build one with `cargo build --release -p beeline`"
    )
}

impl Options {
    /// `outside` tells whether the binary has the feature. Options that need --host-role outside or edge moreover are
    /// refused by the check of the host role.
    pub(super) fn check_features(&self, outside: bool) -> anyhow::Result<()> {
        let role = match self.host_role() {
            HostRole::Node => None,
            HostRole::Outside => Some("--host-role outside"),
            HostRole::Edge => Some("--host-role edge"),
        };
        let clusters = (!self.clusters.is_empty()).then_some("clusters");
        let dns = self.dns_address.and_then(OrOff::enabled).map(|_| "--dns-address");
        match role.or(clusters).or(dns) {
            Some(subject) if !outside => Err(left_out(subject)),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, outside: bool) -> Result<(), String> {
        let checked = Options::parse(text).and_then(|options| options.check_features(outside));
        checked.map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn a_binary_for_nodes_refuses_what_only_other_hosts_need() {
        let list = "node-name: n1\nclusters: [{ name: a, kubeconfig: /a }, { name: b, kubeconfig: /b }]";
        for (text, subject) in [
            ("host-role: outside\nkubeconfig: /k", "--host-role outside: "),
            ("host-role: edge\nnode-name: e1", "--host-role edge: "),
            ("node-name: n1\nkubeconfig: /k\ndns-address: 127.0.0.55:53", "--dns-address: "),
            (list, "clusters: "),
        ] {
            assert_eq!(check(text, true), Ok(()));
            let error = check(text, false).unwrap_err();
            assert!(error.starts_with(subject) && error.contains("Debian package"), "{error}");
        }
        assert_eq!(check("node-name: n1\nkubeconfig: /k\ndns-address: 'off'", false), Ok(()));
    }
}
