//! `beeline cleanup`: detach and unpin, and say what was removed.

use crate::args::Cleanup;
use crate::options::Options;
use crate::print;
use anyhow::Context;
use std::path::PathBuf;
use std::process::ExitCode;

pub fn run(cleanup: &Cleanup) -> anyhow::Result<ExitCode> {
    let dir = pin_dir(cleanup)?;
    let removed = beeline_datapath::program::cleanup(&dir)?;
    print::show(cleanup.view.output, &removed, || {
        if removed.links.is_empty() && removed.maps == 0 {
            return format!("nothing was pinned at {}\n", dir.display());
        }
        let (links, maps) = (removed.links.join(" "), removed.maps);
        format!("detached {} hooks: {links}\nremoved {maps} maps at {}\n", removed.links.len(), dir.display())
    })?;
    Ok(ExitCode::SUCCESS)
}

fn pin_dir(cleanup: &Cleanup) -> anyhow::Result<PathBuf> {
    let Some(file) = &cleanup.config else { return Ok(cleanup.view.place.pin_dir.clone()) };
    let text = std::fs::read_to_string(file).with_context(|| format!("--config {}", file.display()))?;
    Ok(Options::parse(&text).with_context(|| format!("--config {}", file.display()))?.pin_dir())
}
