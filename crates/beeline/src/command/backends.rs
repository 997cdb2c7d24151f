//! `beeline backends`: every backend, with the number of dials that it got.

use crate::args::View;
use crate::live::Live;
use crate::print;
use crate::print::dash;
use serde::Serialize;
use std::process::ExitCode;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    cluster: String,
    service: String,
    address: String,
    port: u16,
    node: Option<String>,
    sets: Vec<&'static str>,
    picks: u64,
}

pub fn run(view: &View) -> anyhow::Result<ExitCode> {
    let live = Live::open(&view.place.pin_dir)?;
    let count = live.count()?;
    let roles = [(1, "cluster"), (2, "local"), (4, "node")];
    let mut rows: Vec<Row> = live
        .rows
        .backends
        .iter()
        .map(|(id, b)| Row {
            cluster: live.cluster(b.owner).unwrap_or_default(),
            service: live.owner_text(b.owner),
            address: b.address.to_string(),
            port: b.port,
            node: live.node_name(b.node).map(str::to_owned),
            sets: roles.iter().filter(|(bit, _)| b.state.roles & bit != 0).map(|(_, name)| *name).collect(),
            picks: count.picks_of(id),
        })
        .collect();
    rows.sort_by(|a, b| (&a.service, &a.address, a.port).cmp(&(&b.service, &b.address, b.port)));
    print::show(view.output, &rows, || {
        let cells = |r: &Row| {
            let picks = r.picks.to_string();
            vec![
                r.service.clone(),
                r.address.clone(),
                r.port.to_string(),
                dash(r.node.as_ref()),
                r.sets.join(","),
                picks,
            ]
        };
        print::table(
            &["SERVICE", "ADDRESS", "PORT", "NODE", "SETS", "PICKS"],
            &rows.iter().map(cells).collect::<Vec<_>>(),
        )
    })?;
    Ok(ExitCode::SUCCESS)
}
