//! `beeline man`: manual pages for beeline and its subcommands, generated from the same texts as `--help`.

use crate::args::Args;
use anyhow::Context;
use clap::CommandFactory;
use std::path::Path;
use std::process::ExitCode;

pub fn run(dir: &Path) -> anyhow::Result<ExitCode> {
    std::fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    clap_mangen::generate_to(Args::command(), dir).with_context(|| dir.display().to_string())?;
    Ok(ExitCode::SUCCESS)
}
