//! `beeline cleanup`: detach and unpin, and say what was removed.

use crate::args::Cleanup;
use crate::options::Options;
use crate::print;
use anyhow::Context;
use beeline_datapath::cgroup;
use std::process::ExitCode;

pub fn run(cleanup: &Cleanup) -> anyhow::Result<ExitCode> {
    let options = options(cleanup)?;
    let dir = options.as_ref().map_or_else(|| cleanup.view.place.pin_dir.clone(), Options::pin_dir);
    let removed = beeline_datapath::program::cleanup(&dir)?;
    remove_rooms(options.as_ref());
    print::show(cleanup.view.output, &removed, || {
        if removed.links.is_empty() && removed.maps == 0 {
            return format!("nothing was pinned at {}\n", dir.display());
        }
        let (links, maps) = (removed.links.join(" "), removed.maps);
        format!("detached {} hooks: {links}\nremoved {maps} maps at {}\n", removed.links.len(), dir.display())
    })?;
    Ok(ExitCode::SUCCESS)
}

fn options(cleanup: &Cleanup) -> anyhow::Result<Option<Options>> {
    let Some(file) = &cleanup.config else { return Ok(None) };
    let text = std::fs::read_to_string(file).with_context(|| format!("--config {}", file.display()))?;
    Options::parse(&text).map(Some).with_context(|| format!("--config {}", file.display()))
}

/// Cgroups of commands in views, where nobody is in them.
pub fn remove_rooms(options: Option<&Options>) {
    let named = options.and_then(|options| options.cgroup.clone());
    if let Some(cgroup) = named.or_else(|| cgroup::root().ok()) {
        beeline_agent::remove_rooms(&cgroup);
    }
}
