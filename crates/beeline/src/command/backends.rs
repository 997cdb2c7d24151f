//! `beeline backends`: every backend with the number of dials that it received.

use crate::args::QueryArgs;
use crate::live_tables::LiveTables;
use crate::print::{self, or_dash};
use serde::Serialize;
use std::process::ExitCode;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct BackendRow {
    cluster: String,
    service: String,
    address: String,
    port: u16,
    node: Option<String>,
    sets: Vec<&'static str>,
    picks: u64,
}

pub fn run(query: &QueryArgs) -> anyhow::Result<ExitCode> {
    let tables = LiveTables::of_agent(&query.paths)?;
    let counters = tables.counters()?;
    let roles = [(1, "cluster"), (2, "local"), (4, "node")];
    let backends = tables.rows.backends.iter();
    let mut rows: Vec<BackendRow> = backends
        .map(|(id, b)| BackendRow {
            cluster: tables.cluster(b.owner).unwrap_or_default(),
            service: tables.owner_text(b.owner),
            address: b.address.to_string(),
            port: b.port,
            node: tables.node_name(b.node).map(str::to_owned),
            sets: roles.iter().filter(|(bit, _)| b.state.roles & bit != 0).map(|(_, name)| *name).collect(),
            picks: counters.picks_of(id),
        })
        .collect();
    rows.sort_by(|a, b| (&a.service, &a.address, a.port).cmp(&(&b.service, &b.address, b.port)));
    print::write(query.output, &rows, || table(&rows))?;
    Ok(ExitCode::SUCCESS)
}

fn table(rows: &[BackendRow]) -> String {
    let cells = |r: &BackendRow| {
        let (port, picks) = (r.port.to_string(), r.picks.to_string());
        vec![r.service.clone(), r.address.clone(), port, or_dash(r.node.as_ref()), r.sets.join(","), picks]
    };
    let cells: Vec<Vec<String>> = rows.iter().map(cells).collect();
    print::table(&["SERVICE", "ADDRESS", "PORT", "NODE", "SETS", "PICKS"], &cells)
}
