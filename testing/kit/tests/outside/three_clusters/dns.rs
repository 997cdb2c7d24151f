//! DNS names of each cluster, queried with dig on the host.

use super::clusters::{DNS, MultiClusterHost};
use crate::fixture::wait_until;

fn dig(host: &MultiClusterHost, server: &str, arguments: &[&str]) -> String {
    let at = format!("@{server}");
    let own = ["dig", &at, "+tries=1", "+time=3"];
    host.clusters.outside.run(&[&own, arguments].concat()).unwrap_or_else(|error| format!("{error:#}"))
}

fn short(host: &MultiClusterHost, server: &str, name: &str, kind: &str) -> String {
    dig(host, server, &["+short", name, kind]).trim().to_owned()
}

/// Checks the names of all clusters, with and without API servers.
pub fn names_of_each_cluster_resolve(host: &MultiClusterHost, when: &str) {
    let clusters = host.clusters;
    let blue = format!("web.{}.svc.blue.beeline", clusters.fixture.namespace());
    let (green, red) = ("web.default.svc.green.beeline", "web.default.svc.red.beeline");
    let [default_view, green_view] = DNS;
    wait_until("the names of blue resolve", || short(host, default_view, &blue, "A") == clusters.shared_ips[0]);
    for (at, kind) in [(0, "A"), (1, "AAAA")] {
        assert_eq!(short(host, default_view, &blue, kind), clusters.shared_ips[at], "{when}");
        assert_eq!(short(host, default_view, red, kind), clusters.red_ips[at], "{when}");
        assert_eq!(short(host, green_view, green, kind), clusters.shared_ips[at], "{when}, in green's view");
        assert_eq!(
            short(host, default_view, green, kind),
            "",
            "{when}: the address belongs to blue in the default view"
        );
    }
    let output = dig(host, default_view, &[green, "A"]);
    assert!(output.contains("belongs to cluster blue in this view: dial it in a view of green"), "{when}: {output}");
    let domain = short(host, green_view, "web.default.svc.cluster.local", "A");
    assert_eq!(domain, clusters.shared_ips[0], "{when}: cluster.local is green's in its view");
    assert_eq!(short(host, default_view, "web.default.svc.cluster.local", "A"), "", "{when}: blue has no default/web");
    let srv = short(host, default_view, &format!("_tcp._tcp.{blue}"), "SRV");
    assert!(srv.contains(" 80 ") && srv.contains("svc.blue.beeline"), "{when}: {srv}");
    assert!(dig(host, default_view, &["example.org", "A"]).contains("REFUSED"), "{when}");
    println!("{when}: the names of all clusters resolve");
}
