//! Lists the programs that are attached to the hooks of a cgroup, and reads their run-time statistics.

use crate::{Context, Result};
use libbpf_rs::libbpf_sys;
use serde::Serialize;
use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

/// Hooks and their attach types.
const ATTACH: [(&str, u32); 9] = [
    ("connect4", libbpf_sys::BPF_CGROUP_INET4_CONNECT),
    ("connect6", libbpf_sys::BPF_CGROUP_INET6_CONNECT),
    ("sendmsg4", libbpf_sys::BPF_CGROUP_UDP4_SENDMSG),
    ("sendmsg6", libbpf_sys::BPF_CGROUP_UDP6_SENDMSG),
    ("recvmsg4", libbpf_sys::BPF_CGROUP_UDP4_RECVMSG),
    ("recvmsg6", libbpf_sys::BPF_CGROUP_UDP6_RECVMSG),
    ("getpeername4", libbpf_sys::BPF_CGROUP_INET4_GETPEERNAME),
    ("getpeername6", libbpf_sys::BPF_CGROUP_INET6_GETPEERNAME),
    ("sock_release", libbpf_sys::BPF_CGROUP_INET_SOCK_RELEASE),
];

#[derive(Clone, Debug, Serialize)]
pub struct AttachedProgram {
    pub hook: &'static str,
    pub id: u32,
    pub name: String,
    /// Ids of its maps, which identify Beeline's programs.
    #[serde(skip)]
    pub maps: Vec<u32>,
}

/// Programs attached to this cgroup itself, in the order in which they run.
pub fn attached(cgroup: &Path) -> Result<Vec<AttachedProgram>> {
    let dir = File::open(cgroup).context(|| format!("cannot open the cgroup {}", cgroup.display()))?;
    let programs: HashMap<u32, (String, Vec<u32>)> = libbpf_rs::query::ProgInfoIter::with_query_opts(
        libbpf_rs::query::ProgInfoQueryOptions::default().include_map_ids(true),
    )
    .map(|p| (p.id, (p.name.to_string_lossy().into_owned(), p.map_ids)))
    .collect();
    let mut all = Vec::new();
    for (hook, kind) in ATTACH {
        for id in query(dir.as_raw_fd(), kind)? {
            let (name, maps) = programs.get(&id).cloned().unwrap_or_default();
            all.push(AttachedProgram { hook, id, name, maps });
        }
    }
    Ok(all)
}

fn query(cgroup: i32, kind: u32) -> Result<Vec<u32>> {
    let mut ids = vec![0u32; 64];
    let mut count = ids.len() as u32;
    let mut flags = 0u32;
    // SAFETY: the kernel writes at most `count` ids, which is the length of `ids`.
    let code = unsafe { libbpf_sys::bpf_prog_query(cgroup, kind, 0, &mut flags, ids.as_mut_ptr(), &mut count) };
    if code < 0 {
        return Err(std::io::Error::from_raw_os_error(-code))
            .context(|| "cannot query the programs attached to the cgroup".into());
    }
    ids.truncate(count as usize);
    Ok(ids)
}

/// Whether a program is one of Beeline's: it uses Beeline's maps.
pub fn is_ours(program: &AttachedProgram) -> bool {
    let name_of = |id: &u32| {
        libbpf_rs::MapHandle::from_map_id(*id).ok().map(|m| libbpf_rs::MapCore::name(&m).to_string_lossy().into_owned())
    };
    let names: Vec<String> = program.maps.iter().filter_map(name_of).collect();
    names.iter().any(|name| name == "udp_record" || name == "tcp_record")
}

/// Makes the kernel count the runs and the run time of every program while the returned descriptor is open.
pub fn enable_run_time_stats() -> Result<OwnedFd> {
    // SAFETY: no pointer is passed; the result is a new descriptor or a negative errno.
    let fd = unsafe { libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME) };
    if fd < 0 {
        return Err(std::io::Error::from_raw_os_error(-fd)).context(|| "cannot enable BPF run-time statistics".into());
    }
    // SAFETY: the descriptor is new, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Number of runs of a program and their total time in nanoseconds. Counted only under [`enable_run_time_stats`].
pub fn run_time(id: u32) -> Option<(u64, u64)> {
    libbpf_rs::query::ProgInfoIter::default().find(|p| p.id == id).map(|p| (p.run_cnt, p.run_time_ns))
}
