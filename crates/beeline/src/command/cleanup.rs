//! `beeline cleanup`: detaches all BPF programs, removes the pinned maps and prints what was removed.

use super::usage;
use crate::args::CleanupArgs;
use crate::live_tables::pin_dir;
use crate::options::Options;
use crate::print;
use anyhow::Context;
use beeline_datapath::cgroup;
use std::process::ExitCode;

pub fn run(cleanup: &CleanupArgs) -> anyhow::Result<ExitCode> {
    let options = options(cleanup).map_err(usage)?;
    let dir = options.as_ref().map_or_else(|| pin_dir(&cleanup.query.paths, None), Options::pin_dir);
    let removed = beeline_datapath::program::cleanup(&dir)?;
    remove_view_cgroups(options.as_ref());
    print::write(cleanup.query.output, &removed, || {
        if removed.links.is_empty() && removed.maps == 0 {
            return format!("nothing was pinned at {}\n", dir.display());
        }
        let (links, maps) = (removed.links.join(" "), removed.maps);
        format!("detached {} hooks: {links}\nremoved {maps} maps at {}\n", removed.links.len(), dir.display())
    })?;
    Ok(ExitCode::SUCCESS)
}

fn options(cleanup: &CleanupArgs) -> anyhow::Result<Option<Options>> {
    let Some(file) = &cleanup.config else { return Ok(None) };
    let context = || format!("--config {}", file.display());
    let text = std::fs::read_to_string(file).with_context(context)?;
    Options::parse(&text).map(Some).with_context(context)
}

/// Removes the cgroups of `beeline run` that hold no process.
pub fn remove_view_cgroups(options: Option<&Options>) {
    let configured = options.and_then(|options| options.cgroup.clone());
    if let Some(cgroup) = configured.or_else(|| cgroup::root().ok()) {
        beeline_agent::remove_view_cgroups(&cgroup);
    }
}
