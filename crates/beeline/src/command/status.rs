//! `beeline status`: the agent's own report; without an agent, what the kernel's tables hold.

mod text;

use super::CHECK_FAILED;
use crate::args::QueryArgs;
use crate::live_tables::{LiveTables, pin_dir};
use crate::print;
use beeline_api::{AgentClient, AgentStatus, ClientError};
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;

/// The status as far as the tables contain it, for when no agent runs.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct TablesStatus {
    /// `none at SOCKET`.
    agent: String,
    last_heartbeat: Option<String>,
    /// `keep`, or `passthrough after N s` (`--agent-down-action`).
    agent_down_action: String,
    kernel: TablesLocation,
    counts: TableCounts,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct TablesLocation {
    pin_dir: PathBuf,
    layout: u32,
    generation: u32,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct TableCounts {
    frontends: usize,
    sets: usize,
    backends: usize,
    dials_no_port: u64,
}

/// The exit code is 4 without an agent: the tables are served, but no longer updated.
pub fn run(query: &QueryArgs) -> anyhow::Result<ExitCode> {
    match AgentClient::new(&query.paths.socket).status() {
        Ok(status) => {
            print::write(query.output, &status, || text::agent(&status))?;
            Ok(ExitCode::SUCCESS)
        }
        Err(ClientError::NoAgent(_)) => {
            let status = tables_status(query)?;
            print::write(query.output, &status, || text::tables(&status))?;
            Ok(ExitCode::from(CHECK_FAILED))
        }
        Err(error) => Err(error.into()),
    }
}

fn tables_status(query: &QueryArgs) -> anyhow::Result<TablesStatus> {
    let pin_dir = pin_dir(&query.paths, None);
    let tables = LiveTables::open(&pin_dir)?;
    let control = tables.control()?;
    let rows = &tables.rows;
    Ok(TablesStatus {
        agent: format!("none at {}", query.paths.socket.display()),
        last_heartbeat: control.heartbeat_age().map(|age| format!("{:.1} s ago", age.as_secs_f64())),
        agent_down_action: control
            .agent_down_timeout()
            .map_or("keep".to_owned(), |timeout| format!("passthrough after {} s", timeout.as_secs())),
        kernel: TablesLocation { pin_dir, layout: tables.meta.layout, generation: tables.meta.generation },
        counts: TableCounts {
            frontends: rows.frontends.keys().filter(|k| k.protocol.is_some()).count(),
            sets: rows.sets.len(),
            backends: rows.backends.len(),
            dials_no_port: tables.counters()?.stat("dials_no_port"),
        },
    })
}

/// Whether the only cluster is the node's own. Its name is not printed then.
fn is_plain(status: &AgentStatus) -> bool {
    use beeline_model::name::LOCAL_CLUSTER;
    use beeline_model::rules::HostRole;
    let only_local = matches!(&status.clusters[..], [cluster] if cluster.name == LOCAL_CLUSTER);
    status.host_role == HostRole::Node && only_local
}
