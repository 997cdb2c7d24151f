//! What stands at the hooks of a cgroup, ours and others'.

use crate::{Context, Result};
use libbpf_rs::libbpf_sys;
use serde::Serialize;
use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

/// Hook and its attach type.
const ATTACH: [(&str, u32); 8] = [
    ("connect4", libbpf_sys::BPF_CGROUP_INET4_CONNECT),
    ("connect6", libbpf_sys::BPF_CGROUP_INET6_CONNECT),
    ("sendmsg4", libbpf_sys::BPF_CGROUP_UDP4_SENDMSG),
    ("sendmsg6", libbpf_sys::BPF_CGROUP_UDP6_SENDMSG),
    ("recvmsg4", libbpf_sys::BPF_CGROUP_UDP4_RECVMSG),
    ("recvmsg6", libbpf_sys::BPF_CGROUP_UDP6_RECVMSG),
    ("getpeername4", libbpf_sys::BPF_CGROUP_INET4_GETPEERNAME),
    ("getpeername6", libbpf_sys::BPF_CGROUP_INET6_GETPEERNAME),
];

#[derive(Clone, Debug, Serialize)]
pub struct Attached {
    pub hook: &'static str,
    pub id: u32,
    pub name: String,
    /// Its maps, by which ours are known.
    #[serde(skip)]
    pub maps: Vec<u32>,
}

/// Programs attached to this very cgroup, in the order in which they run.
pub fn attached(cgroup: &Path) -> Result<Vec<Attached>> {
    let dir = File::open(cgroup).context(|| format!("cannot open the cgroup {}", cgroup.display()))?;
    let known: HashMap<u32, (String, Vec<u32>)> = libbpf_rs::query::ProgInfoIter::with_query_opts(
        libbpf_rs::query::ProgInfoQueryOptions::default().include_map_ids(true),
    )
    .map(|p| (p.id, (p.name.to_string_lossy().into_owned(), p.map_ids)))
    .collect();
    let mut all = Vec::new();
    for (hook, kind) in ATTACH {
        for id in query(dir.as_raw_fd(), kind)? {
            let (name, maps) = known.get(&id).cloned().unwrap_or_default();
            all.push(Attached { hook, id, name, maps });
        }
    }
    Ok(all)
}

fn query(cgroup: i32, kind: u32) -> Result<Vec<u32>> {
    let mut ids = vec![0u32; 64];
    let mut count = ids.len() as u32;
    let mut flags = 0u32;
    // SAFETY: the kernel writes at most `count` ids, which is how many there is room for.
    let code = unsafe { libbpf_sys::bpf_prog_query(cgroup, kind, 0, &mut flags, ids.as_mut_ptr(), &mut count) };
    if code < 0 {
        return Err(std::io::Error::from_raw_os_error(-code)).context(|| "cannot ask what is attached".into());
    }
    ids.truncate(count as usize);
    Ok(ids)
}

/// Whether a program is one of ours: it uses our tables.
pub fn is_ours(program: &Attached) -> bool {
    let named = |id: &u32| {
        libbpf_rs::MapHandle::from_map_id(*id).ok().map(|m| libbpf_rs::MapCore::name(&m).to_string_lossy().into_owned())
    };
    let names: Vec<String> = program.maps.iter().filter_map(named).collect();
    names.iter().any(|name| name == "udp_record" || name == "tcp_record")
}

/// While it is held, the kernel adds up how often and how long every program runs.
pub fn time_programs() -> Result<OwnedFd> {
    // SAFETY: no pointer is passed; the answer is a fresh descriptor or a negative errno.
    let fd = unsafe { libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME) };
    if fd < 0 {
        return Err(std::io::Error::from_raw_os_error(-fd)).context(|| "cannot switch run-time statistics on".into());
    }
    // SAFETY: nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// What a program has run for so far: how often, and nanoseconds in all. Counted only under [`time_programs`].
pub fn run_time(id: u32) -> Option<(u64, u64)> {
    libbpf_rs::query::ProgInfoIter::default().find(|p| p.id == id).map(|p| (p.run_cnt, p.run_time_ns))
}
