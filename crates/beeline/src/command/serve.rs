//! What agent and controller have in common: a log on standard error, and a runtime until the end.

use std::io::IsTerminal;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

/// The client's own words about every failed try are left out: whoever serves says when an outage begins and ends.
const LOG: &str = "info,kube_client=off";

pub fn serve(threads: usize, work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<ExitCode> {
    let filter = EnvFilter::try_from_env("BEELINE_LOG").unwrap_or_else(|_| EnvFilter::new(LOG));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()?;
    runtime.block_on(work)?;
    Ok(ExitCode::SUCCESS)
}
