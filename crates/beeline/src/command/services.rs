//! `beeline services`: every frontend with the set behind it.

use crate::args::View;
use crate::live::Live;
use crate::print;
use crate::views;
use beeline_model::name::LOCAL_CLUSTER;
use beeline_model::row::{FrontendKey, Role, WhenEmpty};
use serde::Serialize;
use std::process::ExitCode;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    cluster: String,
    /// 0: everybody's.
    view: u32,
    /// The name of the view, where an agent tells it.
    #[serde(skip_serializing_if = "Option::is_none")]
    view_name: Option<String>,
    service: String,
    port: String,
    kind: &'static str,
    address: String,
    frontend_port: u16,
    protocol: String,
    set: &'static str,
    backends: Vec<String>,
    affinity_seconds: u32,
    when_empty: &'static str,
    dials: u64,
    refused: u64,
}

impl Row {
    /// With a nodePort the number is its cluster's.
    fn has_view(&self) -> bool {
        self.view != 0 && self.kind != "nodePort"
    }
}

pub fn kind_name(kind: beeline_model::row::Kind) -> &'static str {
    use beeline_model::row::Kind::*;
    match kind {
        ClusterIp => "clusterIP",
        NodePort => "nodePort",
        LoadBalancer => "loadBalancer",
        ExternalIp => "externalIP",
        Virtual => "virtual",
    }
}

pub fn role_name(role: Role) -> &'static str {
    match role {
        Role::Cluster => "cluster",
        Role::Local => "local",
        Role::Node => "node",
    }
}

pub fn run(view: &View) -> anyhow::Result<ExitCode> {
    let live = Live::open(&view.place.pin_dir)?;
    let mut rows = collect(&live)?;
    if rows.iter().any(Row::has_view) {
        let names = views::names(&view.place.socket).unwrap_or_default();
        rows.iter_mut()
            .filter(|row| row.has_view())
            .for_each(|row| row.view_name = Some(views::shown(&names, row.view)));
    }
    print::show(view.output, &rows, || table(&rows))?;
    Ok(ExitCode::SUCCESS)
}

fn collect(live: &Live) -> anyhow::Result<Vec<Row>> {
    let count = live.count()?;
    let mut keys: Vec<&FrontendKey> = live.rows.frontends.keys().filter(|k| k.protocol.is_some()).collect();
    keys.sort();
    let mut rows = Vec::new();
    for key in keys {
        let frontend = live.rows.frontends[key];
        let Some(set) = live.rows.sets.get(frontend.set) else { continue };
        let name = live.port_name(set.owner);
        let counters = count.of_owner(set.owner);
        let service = name.as_ref().map(|n| format!("{}/{}", n.service.namespace(), n.service.name()));
        rows.push(Row {
            cluster: name.as_ref().map(|n| n.service.cluster().to_owned()).unwrap_or_default(),
            view: key.view,
            view_name: None,
            service: service.unwrap_or_default(),
            port: name.map(|n| n.port.to_string()).unwrap_or_default(),
            kind: kind_name(frontend.kind),
            address: key.address.to_string(),
            frontend_port: key.port,
            protocol: print::dash(key.protocol),
            set: role_name(set.role),
            backends: backends_of(live, set),
            affinity_seconds: set.header.affinity,
            when_empty: if set.when_empty() == WhenEmpty::Fail { "fail" } else { "refuse" },
            dials: counters.dials,
            refused: counters.refused,
        });
    }
    rows.sort_by(|a, b| (&a.cluster, &a.service, &a.port, a.view).cmp(&(&b.cluster, &b.service, &b.port, b.view)));
    Ok(rows)
}

pub fn backends_of(live: &Live, set: &beeline_model::row::SetRow) -> Vec<String> {
    let mut all: Vec<_> = live.rows.members(set).iter().filter_map(|id| live.rows.backends.get(*id)).collect();
    all.sort_by_key(|b| (b.address, b.port));
    all.iter().map(|b| std::net::SocketAddr::new(b.address.ip(), b.port).to_string()).collect()
}

/// Clusters are said where there is more than a Node's own, views where there are any.
fn table(rows: &[Row]) -> String {
    let several = rows.iter().any(|row| row.cluster != LOCAL_CLUSTER);
    let views = rows.iter().any(Row::has_view);
    let cells = |r: &Row| {
        let shown = r.backends.iter().take(3).cloned().collect::<Vec<_>>().join(" ");
        let more = r.backends.len().saturating_sub(3);
        let backends = if more > 0 { format!("{shown} (+{more})") } else { shown };
        let dialled = if r.address.contains(':') {
            format!("[{}]:{}/{}", r.address, r.frontend_port, r.protocol)
        } else {
            format!("{}:{}/{}", r.address, r.frontend_port, r.protocol)
        };
        let port = if r.port.is_empty() { "-".into() } else { r.port.clone() };
        let mut cells: Vec<String> = Vec::new();
        cells.extend(several.then(|| r.cluster.clone()));
        cells.extend(views.then(|| print::dash(r.view_name.as_ref())));
        cells.extend([
            r.service.clone(),
            port,
            r.kind.into(),
            dialled,
            r.set.into(),
            if backends.is_empty() { format!("none ({})", r.when_empty) } else { backends },
            r.dials.to_string(),
            r.refused.to_string(),
        ]);
        cells
    };
    let mut header: Vec<&str> = Vec::new();
    header.extend(several.then_some("CLUSTER"));
    header.extend(views.then_some("VIEW"));
    header.extend(["SERVICE", "PORT", "KIND", "DIALLED", "SET", "BECOMES", "DIALS", "REFUSED"]);
    print::table(&header, &rows.iter().map(cells).collect::<Vec<_>>())
}
