//! `beeline cleanup`: detach and unpin, and say what was removed.

use crate::args::Cleanup;
use crate::print;
use std::process::ExitCode;

pub fn run(cleanup: &Cleanup) -> anyhow::Result<ExitCode> {
    let dir = &cleanup.view.place.pin_dir;
    let removed = beeline_datapath::program::cleanup(dir)?;
    print::show(cleanup.view.output, &removed, || {
        if removed.links.is_empty() && removed.maps == 0 {
            return format!("nothing was pinned at {}\n", dir.display());
        }
        let (links, maps) = (removed.links.join(" "), removed.maps);
        format!("detached {} hooks: {links}\nremoved {maps} maps at {}\n", removed.links.len(), dir.display())
    })?;
    Ok(ExitCode::SUCCESS)
}
