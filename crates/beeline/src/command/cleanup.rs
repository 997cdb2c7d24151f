//! `beeline cleanup`: detaches all BPF programs, removes the pinned maps and prints what was removed.

use super::usage;
use crate::args::CleanupArgs;
use crate::live_tables::pin_dir;
use crate::options::Options;
use crate::print;
use anyhow::Context;
use beeline_agent::packet_path::table_config;
use beeline_datapath::{cgroup, packet};
use beeline_netfilter::Table;
use std::process::ExitCode;

pub fn run(cleanup: &CleanupArgs) -> anyhow::Result<ExitCode> {
    let options = options(cleanup).map_err(usage)?;
    let dir = options.as_ref().map_or_else(|| pin_dir(&cleanup.query.paths, None), Options::pin_dir);
    let removed = beeline_datapath::program::cleanup(&dir)?;
    remove_view_cgroups(options.as_ref());
    remove_packet_path(options.as_ref(), removed.links.iter().any(|link| link.starts_with(packet::PIN_PREFIX)))?;
    print::write(cleanup.query.output, &removed, || {
        if removed.links.is_empty() && removed.maps == 0 {
            return format!("nothing was pinned at {}\n", dir.display());
        }
        let (links, maps) = (removed.links.join(" "), removed.maps);
        format!("detached {} hooks: {links}\nremoved {maps} maps at {}\n", removed.links.len(), dir.display())
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Removes what the packet path leaves outside the pins: the nftables table, and on older kernels the tc filters. Without an
/// attached packet program there is neither: the table of another agent stays.
fn remove_packet_path(options: Option<&Options>, was_attached: bool) -> anyhow::Result<()> {
    let devices = std::fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
    let index =
        |device: std::fs::DirEntry| std::fs::read_to_string(device.path().join("ifindex")).ok()?.trim().parse().ok();
    let had_filters = packet::detach_filters(devices.filter_map(index), Options::packet_filter_priority(options));
    if was_attached || had_filters {
        let removed = Table::open(table_config()).and_then(|mut table| table.remove());
        removed.context("cannot remove the nftables table: run `nft delete table inet beeline`")?;
    }
    Ok(())
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
