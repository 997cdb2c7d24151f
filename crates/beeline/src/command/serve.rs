//! What agent and controller have in common: a log on standard error, and a runtime until the end.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;
use tracing_subscriber::EnvFilter;

/// The client's own words about every failed try are left out: whoever serves says when an outage begins and ends.
/// So are the name server's about every question.
const LOG: &str = "info,kube_client=off,hickory_server=warn";

/// For threads that nobody can interrupt.
const PATIENCE: Duration = Duration::from_secs(2);

pub fn serve(threads: usize, work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<ExitCode> {
    let filter = EnvFilter::try_from_env("BEELINE_LOG").unwrap_or_else(|_| EnvFilter::new(LOG));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()?;
    let done = runtime.block_on(work);
    // What is not waited for by then, a credential plugin that hangs, ends with the process.
    runtime.shutdown_timeout(PATIENCE);
    done?;
    Ok(ExitCode::SUCCESS)
}
