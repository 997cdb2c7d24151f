//! `beeline agent`.

use super::serve::serve;
use crate::options::Options;
use std::process::ExitCode;

pub fn run(options: Options) -> anyhow::Result<ExitCode> {
    let settings = options.load()?.settings()?;
    serve(2, beeline_agent::run(settings))
}
