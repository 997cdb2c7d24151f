//! The status as lines for people.

use super::{TablesStatus, is_plain};
use crate::print::{self, or_dash, plural};
use beeline_api::{
    AgentStatus, ClusterStatus, DnsStatus, ExcludedPodCounts, PacketPathStatus, PolicyCounts, ReachStatus,
    RefusalStatus, SnapshotStatus, SuspendedRedirect, TokenStatus,
};
use beeline_model::rules::HostRole;

type Line = (&'static str, String);

fn render(lines: &[Line]) -> String {
    print::fields(18, lines)
}

pub fn tables(status: &TablesStatus) -> String {
    let (kernel, counts) = (&status.kernel, &status.counts);
    let heartbeat = or_dash(status.last_heartbeat.as_ref());
    render(&[
        ("agent", format!("{}; the BPF programs keep using the last tables", status.agent)),
        ("last heartbeat", format!("{heartbeat}; --agent-down-action: {}", status.agent_down_action)),
        (
            "tables",
            format!("{} (layout {}, generation {})", kernel.pin_dir.display(), kernel.layout, kernel.generation),
        ),
        ("frontends", counts.frontends.to_string()),
        ("sets", counts.sets.to_string()),
        ("backends", counts.backends.to_string()),
        ("closed ports", closed_ports(counts.dials_no_port)),
    ])
}

pub fn agent(status: &AgentStatus) -> String {
    let mut lines: Vec<Line> = vec![("agent", format!("beeline {}, process {}", status.version, status.pid))];
    lines.push(host(status));
    lines.extend(sources(status));
    lines.extend(waiting(status).map(|text| ("waiting", text)));
    lines.extend(kernel(status));
    lines.extend(packet_path(status));
    lines.extend(pod_cgroups(status));
    lines.extend(excluded_pods(&status.counts.excluded_pods));
    lines.extend(status.suspended_redirects.iter().map(suspended_redirect));
    lines.push(("events", events(status)));
    lines.extend(status.dns.as_ref().map(|status| ("dns", dns(status))));
    lines.extend(counts(status));
    render(&lines) + &refusals(&status.refusals)
}

/// Who serves packets that arrive from outside a node.
fn packet_path(status: &AgentStatus) -> Vec<Line> {
    let name = "packet path";
    let Some(path) = &status.packet_path else {
        let text = if status.beside_kube_proxy { "off; kube-proxy serves packets from outside" } else { "off" };
        return Vec::from_iter((status.host_role == HostRole::Node).then(|| (name, text.to_owned())));
    };
    let PacketPathStatus { serving, attachment, devices, table_repairs, counts, .. } = path;
    let at = if devices.is_empty() { "no device".to_owned() } else { devices.join(" ") };
    let how = attachment.as_ref().map_or_else(String::new, |kind| format!(" by {kind}"));
    let mut lines = vec![(name, format!("serving: {}; {at}{how}", yes_no(*serving)))];
    lines.extend(path.problem.as_ref().map(|problem| ("", format!("problem: {problem}"))));
    if !path.table {
        lines.push(("", "the nftables table `inet beeline` is missing".to_owned()));
    }
    if *table_repairs > 0 {
        lines.push(("", format!("the nftables table was changed by another program {} times", table_repairs)));
    }
    let flows = plural(counts.flows as usize, "flow");
    lines.push((
        "",
        format!("{flows}; packets: {} rejected, {} dropped, {} failed", counts.rejected, counts.dropped, counts.failed),
    ));
    lines
}

fn suspended_redirect(suspended: &SuspendedRedirect) -> Line {
    let SuspendedRedirect { backend, since, .. } = suspended;
    ("redirect", format!("{backend} refuses connections since {since}: TCP dials use the next level"))
}

/// A host outside has no node addresses, and a zone per cluster.
fn host(status: &AgentStatus) -> Line {
    let (node, zone) = (&status.node, or_dash(status.zone.as_ref()));
    match status.host_role {
        HostRole::Outside => ("host", format!("{node}; host role: outside")),
        HostRole::Edge => ("node", format!("{node}; host role: edge; zone {zone}")),
        HostRole::Node => ("node", format!("{node} at {}; zone {zone}", status.node_addresses.join(" "))),
    }
}

fn sources(status: &AgentStatus) -> Vec<Line> {
    let mut lines = Vec::new();
    if let Some(source) = status.source.as_ref().filter(|_| is_plain(status)) {
        lines.push(("source", format!("{} {}; synced: {}", source.kind, source.name, yes_no(source.synced))));
        lines.extend(source.error.clone().map(|error| ("source error", error)));
        return lines;
    }
    lines.extend(status.clusters.iter().flat_map(cluster));
    lines.extend(status.tokens.iter().flat_map(token));
    let views: Vec<String> = status.views.iter().map(|view| format!("{}: {} first", view.name, view.first)).collect();
    lines.extend((!views.is_empty()).then(|| ("views", views.join("; "))));
    lines
}

fn cluster(cluster: &ClusterStatus) -> Vec<Line> {
    let since = cluster.since.as_ref().map_or_else(String::new, |since| format!(" since {since}"));
    let synced = yes_no(cluster.synced);
    let ClusterStatus { name, kind, server, .. } = cluster;
    let mut lines = vec![("cluster", format!("{name}: {kind} {server}; synced: {synced}{since}"))];
    let mut detail = |text: String| lines.push(("", text));
    if let Some(time) = &cluster.snapshot_time {
        detail(format!("serving a snapshot of {time}"));
    }
    if let Some(error) = &cluster.error {
        detail(format!("error: {error}"));
    }
    let view = cluster.view.as_ref().map_or_else(String::new, |view| format!("; view {view}"));
    let pods = serde_json::to_value(cluster.pod_access).ok().and_then(|value| value.as_str().map(str::to_owned));
    detail(format!(
        "{}, {} objects; pod access: {}; {} refused{view}",
        plural(cluster.services, "service"),
        or_dash(cluster.objects),
        or_dash(pods),
        cluster.refusals
    ));
    detail(match cluster.ranges_from.as_str() {
        "unknown" => "service ranges: unknown (set serviceCIDRs)".to_owned(),
        from => format!("service ranges: {} ({from})", cluster.ranges.join(" ")),
    });
    cluster.snapshot.iter().flat_map(snapshot).for_each(&mut detail);
    if let Some(bytes) = cluster.bytes {
        detail(format!("{bytes} bytes read from the edge cache"));
    }
    cluster.reach.iter().map(reach).for_each(&mut detail);
    lines
}

fn snapshot(snapshot: &SnapshotStatus) -> Vec<String> {
    let mut lines = vec![match snapshot.age_seconds {
        None => format!("snapshot: none yet at {}", snapshot.path),
        Some(age) => format!("snapshot: {age} s old at {}", snapshot.path),
    }];
    lines.extend(snapshot.error.iter().map(|error| format!("snapshot not written: {error}")));
    lines.extend(snapshot.rejected.iter().map(|reason| format!("snapshot not used: {reason}")));
    lines
}

fn reach(reach: &ReachStatus) -> String {
    let found = serde_json::to_value(reach.found).ok().and_then(|value| value.as_str().map(str::to_owned));
    let (node, found) = (or_dash(reach.node.as_ref()), or_dash(found));
    format!("pods {} of {node}: {found} since {} ({})", reach.prefix, reach.since, reach.evidence)
}

fn token(token: &TokenStatus) -> Vec<Line> {
    let TokenStatus { account, cluster, expires, renews, .. } = token;
    let mut lines = Vec::new();
    if !account.is_empty() {
        lines.push(("token", format!("{account} at {cluster}; valid until {expires}, renewed at {renews}")));
    }
    lines.extend(token.error.clone().map(|error| ("token error", error)));
    lines.extend(token.rejoin.clone().map(|rejoin| ("REJOIN", rejoin)));
    lines
}

fn waiting(status: &AgentStatus) -> Option<String> {
    let waits = !status.clusters.iter().any(|cluster| cluster.synced);
    waits.then(|| {
        let until = "until all objects have been listed once";
        match status.kernel.start.as_str() {
            "fresh" => format!("no service is resolved {until}"),
            _ => format!("the tables of the previous agent stay as they are {until}"),
        }
    })
}

fn kernel(status: &AgentStatus) -> [Line; 2] {
    let kernel = &status.kernel;
    [
        ("hooks", format!("live: {}; self-test: {}; cgroup {}", yes_no(kernel.live), kernel.self_test, kernel.cgroup)),
        (
            "tables",
            format!(
                "{} (layout {}, generation {}, {} at start)",
                kernel.pin_dir, kernel.layout, kernel.generation, kernel.start
            ),
        ),
    ]
}

fn events(status: &AgentStatus) -> String {
    match status.monitors {
        0 => format!("{}, while a monitor is open (none is)", status.events),
        monitors => format!("{}, to {}", status.events, plural(monitors, "monitor")),
    }
}

fn excluded_pods(counts: &ExcludedPodCounts) -> Option<Line> {
    let ExcludedPodCounts { annotation, sidecar, namespace, served_sidecar } = *counts;
    if annotation + sidecar + namespace + served_sidecar == 0 {
        return None;
    }
    let total = annotation + sidecar + namespace;
    let mut text = format!(
        "{total}: {annotation} by annotation, {sidecar} by sidecar, {namespace} by the label of their namespace"
    );
    if served_sidecar > 0 {
        text += &format!("; {} with a sidecar not excluded (--sidecar-exclusion off)", plural(served_sidecar, "pod"));
    }
    Some(("excluded pods", text))
}

/// Hosts outside have no pods.
fn pod_cgroups(status: &AgentStatus) -> Option<Line> {
    let text = match &status.kernel.kubelet_root {
        Some(root) => format!("below {root}; cgroups with the name of a pod elsewhere are ignored"),
        None if status.host_role == HostRole::Outside => return None,
        None => format!("none below {}: no pod of this node is known, or none runs there", status.kernel.cgroup),
    };
    Some(("pod cgroups", text))
}

fn counts(status: &AgentStatus) -> Vec<Line> {
    let (counts, sizes) = (&status.counts, &status.kernel.sizes);
    let (services, slices, nodes) =
        (plural(counts.services, "service"), plural(counts.slices, "slice"), plural(counts.nodes, "node"));
    let rows = format!("{} of {} rows", counts.frontend_rows, sizes.frontends);
    let mut lines = vec![
        ("frontends", format!("{} ({rows})", counts.frontends)),
        ("sets", format!("{} of {}", counts.sets, sizes.sets)),
        ("backends", format!("{} of {}", counts.backends, sizes.backends)),
        ("closed ports", closed_ports(counts.dials_no_port)),
        ("objects", format!("{services}, {slices}, {nodes}")),
        ("policies", policies(&counts.policies)),
        ("stale UDP sockets", format!("{} destroyed", counts.udp_sockets_destroyed)),
    ];
    let change = status.last_change.as_ref().map_or("none since the start".to_owned(), |change| {
        let (services, writes) = (plural(change.services, "service"), plural(change.writes, "write"));
        format!("{}: {services}, {writes} in {:.2} ms", change.at, change.micros as f64 / 1000.0)
    });
    lines.push(("last change", change));
    lines
}

fn closed_ports(dials: u64) -> String {
    let dials = plural(usize::try_from(dials).unwrap_or(usize::MAX), "dial");
    format!("{dials} refused at a ClusterIP's port that its Service does not have (the self-test makes one)")
}

fn policies(counts: &PolicyCounts) -> String {
    let mut text = format!("{}, {} active on this node", counts.total, counts.active);
    if counts.refused > 0 {
        text.push_str(&format!(", {} not accepted", counts.refused));
    }
    if counts.waiting > 0 {
        let waiting = counts.waiting;
        text.push_str(&format!(
            ", {waiting} without ready pods, or not yet published by the controller (beeline policies)"
        ));
    }
    text
}

fn dns(dns: &DnsStatus) -> String {
    let others =
        if dns.forward.is_empty() { "refused".into() } else { format!("forwarded to {}", dns.forward.join(" ")) };
    let pending: Vec<&str> = dns.clusters.iter().filter(|c| !c.synced).map(|c| c.name.as_str()).collect();
    let pending = if pending.is_empty() { String::new() } else { format!("; not synced: {}", pending.join(" ")) };
    let errors = if dns.bind_errors.is_empty() {
        String::new()
    } else {
        format!("; NOT LISTENING: {}", dns.bind_errors.join("; "))
    };
    format!(
        "{} for {}; other names: {others}; {}; {} answered, {} did not exist, {} failed{pending}{errors}",
        dns.address,
        dns.domains.join(" "),
        plural(dns.services, "service"),
        dns.answered,
        dns.missing,
        dns.failed
    )
}

fn refusals(refusals: &[RefusalStatus]) -> String {
    if refusals.is_empty() {
        return render(&[("refused", "none".into())]);
    }
    let several = refusals.iter().any(|refusal| refusal.cluster.is_some());
    let row = |refusal: &RefusalStatus| {
        let RefusalStatus { cluster, subject, reason, message } = refusal.clone();
        several.then(|| or_dash(cluster)).into_iter().chain([subject, reason, message]).collect()
    };
    let rows: Vec<Vec<String>> = refusals.iter().map(row).collect();
    let header = ["CLUSTER", "OBJECT", "REASON", "MESSAGE"];
    format!("\nrefused ({}):\n{}", refusals.len(), print::table(&header[usize::from(!several)..], &rows))
}

fn yes_no(value: bool) -> &'static str {
    if value { "yes" } else { "no" }
}
