//! What the agent and the controller share: a log on standard error and an async runtime that runs until they end.

use crate::options::LogFormat;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;
use tracing_subscriber::EnvFilter;

/// The default of `BEELINE_LOG`. The Kubernetes client would log every failed attempt, but the sources already log the
/// start and the end of an outage; the DNS library would log every query.
const LOG_FILTER: &str = "info,kube_client=off,hickory_server=warn";

/// How long to wait at the end for threads that cannot be interrupted, such as a credential plugin that hangs.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

pub fn serve(
    threads: usize,
    format: LogFormat,
    work: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<ExitCode> {
    init_log(format);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()?;
    let result = runtime.block_on(work);
    runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
    result?;
    Ok(ExitCode::SUCCESS)
}

/// Both formats begin each line with the time in RFC 3339, which is the default of `tracing_subscriber`.
fn init_log(format: LogFormat) {
    let filter = EnvFilter::try_from_env("BEELINE_LOG").unwrap_or_else(|_| EnvFilter::new(LOG_FILTER));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    match format {
        LogFormat::Text => log.with_ansi(std::io::stderr().is_terminal()).init(),
        LogFormat::Json => log.json().flatten_event(true).with_current_span(false).with_span_list(false).init(),
    }
}
