//! `beeline doctor`: what this kernel and host can do for us, what stands at our hooks, and what to do about each.

use super::WRONG;
use crate::args::Doctor;
use crate::live::Live;
use crate::print;
use beeline_agent::status::Request;
use beeline_datapath::{cgroup, query};
use beeline_model::Protocol;
use beeline_model::row::FrontendKey;
use serde::Serialize;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
enum Level {
    Ok,
    Note,
    Wrong,
}

#[derive(Serialize)]
struct Check {
    what: &'static str,
    level: Level,
    found: String,
    next: String,
}

fn check(what: &'static str, level: Level, found: impl Into<String>, next: impl Into<String>) -> Check {
    Check { what, level, found: found.into(), next: next.into() }
}

pub fn run(doctor: &Doctor) -> anyhow::Result<ExitCode> {
    let root = doctor.cgroup.clone().or_else(|| cgroup::root().ok());
    let mut checks = vec![
        rights(),
        kernel(),
        btf(),
        bpffs(&doctor.view.place.pin_dir),
        cgroup2(root.as_deref()),
        errno(),
        reaping(),
    ];
    checks.extend(api_server(doctor));
    checks.extend(root.as_deref().map(others).unwrap_or_default());
    print::show(doctor.view.output, &checks, || {
        let mark = |level| match level {
            Level::Ok => "ok",
            Level::Note => "note",
            Level::Wrong => "WRONG",
        };
        let cells = |c: &Check| vec![mark(c.level).to_owned(), c.what.to_owned(), c.found.clone(), c.next.clone()];
        print::table(&["", "WHAT", "FOUND", "WHAT TO DO"], &checks.iter().map(cells).collect::<Vec<_>>())
    })?;
    let wrong = checks.iter().any(|c| c.level == Level::Wrong);
    Ok(if wrong { ExitCode::from(WRONG) } else { ExitCode::SUCCESS })
}

fn rights() -> Check {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|l| l.strip_prefix("CapEff:")).unwrap_or("0").trim().to_owned();
    let bits = u64::from_str_radix(&effective, 16).unwrap_or(0);
    let needed = [(12, "CAP_NET_ADMIN"), (38, "CAP_PERFMON"), (39, "CAP_BPF"), (21, "CAP_SYS_ADMIN")];
    let missing: Vec<&str> = needed.iter().filter(|(bit, _)| bits >> bit & 1 == 0).map(|(_, name)| *name).collect();
    match missing.is_empty() {
        true => check("rights", Level::Ok, "CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON, CAP_SYS_ADMIN", ""),
        false => check(
            "rights",
            Level::Wrong,
            format!("missing: {}", missing.join(", ")),
            "run as root, or give these capabilities",
        ),
    }
}

fn release() -> (String, (u32, u32)) {
    let text = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned();
    let mut numbers = text.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    (text, version)
}

fn kernel() -> Check {
    let (text, version) = release();
    match version >= (6, 1) {
        true => check("kernel", Level::Ok, text, ""),
        false => check("kernel", Level::Wrong, format!("{text}, older than 6.1"), "boot 6.1 or newer"),
    }
}

fn btf() -> Check {
    match Path::new("/sys/kernel/btf/vmlinux").exists() {
        true => check("BTF", Level::Ok, "/sys/kernel/btf/vmlinux", ""),
        false => {
            check("BTF", Level::Wrong, "the kernel describes no types", "boot a kernel with CONFIG_DEBUG_INFO_BTF=y")
        }
    }
}

fn bpffs(pin_dir: &Path) -> Check {
    let at = pin_dir.ancestors().find(|p| p.exists()).unwrap_or(Path::new("/"));
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let is_bpf = |line: &str| {
        let (before, after) = line.split_once(" - ")?;
        after.starts_with("bpf ").then(|| before.split(' ').nth(4).map(PathBuf::from)).flatten()
    };
    let found = mounts.lines().filter_map(is_bpf).any(|mount| at.starts_with(mount));
    match found {
        true => check("bpffs", Level::Ok, format!("{} can be pinned to", pin_dir.display()), ""),
        false => check(
            "bpffs",
            Level::Wrong,
            format!("{} is in no bpffs", pin_dir.display()),
            "mount -t bpf bpf /sys/fs/bpf",
        ),
    }
}

fn cgroup2(root: Option<&Path>) -> Check {
    let mounts: Vec<String> = cgroup::mounts().iter().map(|m| m.display().to_string()).collect();
    match root {
        Some(root) if cgroup::is_cgroup2(root) => {
            let hidden = std::fs::read_to_string("/proc/self/cgroup").is_ok_and(|t| t.contains("0::/.."));
            let level = if hidden { Level::Note } else { Level::Ok };
            let next = if hidden {
                "this process is in a private cgroup namespace: give --cgroup a path of the host's"
            } else {
                ""
            };
            check("cgroup2", level, format!("{} (mounted at {})", root.display(), mounts.join(" ")), next)
        }
        Some(root) => check(
            "cgroup2",
            Level::Wrong,
            format!("{} is not cgroup2", root.display()),
            "name one below cgroup2 by --cgroup",
        ),
        None => check("cgroup2", Level::Wrong, "not mounted", "mount -t cgroup2 none /sys/fs/cgroup/unified"),
    }
}

/// An agent that needs an address that it provides itself cannot begin where nobody else provides it.
fn api_server(doctor: &Doctor) -> Option<Check> {
    let place = &doctor.view.place;
    let status = beeline_agent::ask(&place.socket, &Request::Status)?.ok()?;
    let server = status.pointer("/source/name")?.as_str()?;
    let host = server.split_once("://")?.1.trim_end_matches('/');
    let at: SocketAddr = host.parse().or_else(|_| format!("{host}:443").parse()).ok()?;
    let key = FrontendKey::new(at.ip().into(), at.port(), Protocol::Tcp);
    let own = Live::open(&place.pin_dir).ok()?.rows.frontends.contains_key(&key);
    Some(match own {
        true => check(
            "API server",
            Level::Wrong,
            format!("{server} is a service address, which the agent provides itself"),
            "give the control plane's own addresses by --api-server",
        ),
        false => check("API server", Level::Ok, server, ""),
    })
}

fn errno() -> Check {
    match release().1 >= (5, 18) {
        true => check("exact errno", Level::Ok, "a refusal is ECONNREFUSED", ""),
        false => check("exact errno", Level::Wrong, "a refusal would be EPERM", "boot 5.18 or newer"),
    }
}

fn reaping() -> Check {
    match release().1 {
        v if v >= (6, 16) => check("stale UDP sockets", Level::Ok, "destroyed exactly, in one pass", ""),
        v if v >= (6, 5) => check(
            "stale UDP sockets",
            Level::Ok,
            "destroyed exactly, in repeated passes (before 6.16 a walk may skip)",
            "",
        ),
        _ => check(
            "stale UDP sockets",
            Level::Note,
            "destroyed by netlink: one that reconnects in that moment goes too",
            "6.5 or newer is exact",
        ),
    }
}

/// Other programs at the hooks run beside ours: links are safe from whoever detaches by cgroup.
fn others(root: &Path) -> Vec<Check> {
    let attached = match query::attached(root) {
        Ok(attached) => attached,
        Err(error) => return vec![check("hooks", Level::Wrong, error.to_string(), "run as root")],
    };
    let (ours, others): (Vec<_>, Vec<_>) = attached.into_iter().partition(query::is_ours);
    let at = root.display();
    let mut checks = vec![match ours.len() {
        0 => check("our hooks", Level::Note, format!("none at {at}"), "start an agent, or name its --cgroup"),
        8 => check("our hooks", Level::Ok, format!("all 8 at {at}"), ""),
        n => check(
            "our hooks",
            Level::Wrong,
            format!("{n} of 8 at {at}"),
            "restart the agent: it attaches what is missing",
        ),
    }];
    for other in others {
        let found = format!("{}: program {} ({})", other.hook, other.id, other.name);
        let next = "it runs beside ours; if it also resolves services (another kube-proxy replacement), switch one of them off";
        checks.push(check("other program", Level::Note, found, next));
    }
    checks
}
