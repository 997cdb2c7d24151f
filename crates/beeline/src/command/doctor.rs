//! `beeline doctor`: checks what the agent needs from the kernel and the host, lists the programs at its hooks, and
//! says what to change.

mod kernel_mount;
mod packet_path;

use super::CHECK_FAILED;
use super::agent::is_bpffs;
use crate::args::DoctorArgs;
use crate::live_tables::{LiveTables, pin_dir};
use crate::print;
use beeline_api::{AgentClient, AgentStatus};
use beeline_datapath::{cgroup, query};
use beeline_model::Protocol;
use beeline_model::row::FrontendKey;
use serde::Serialize;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The number of hooks that the agent attaches to.
const HOOKS: usize = 9;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
enum Level {
    Ok,
    Note,
    Wrong,
}

#[derive(Debug, Serialize)]
struct Check {
    what: &'static str,
    level: Level,
    found: String,
    next: String,
}

fn check(what: &'static str, level: Level, found: impl Into<String>, next: impl Into<String>) -> Check {
    Check { what, level, found: found.into(), next: next.into() }
}

fn ok(what: &'static str, found: impl Into<String>) -> Check {
    check(what, Level::Ok, found, "")
}

fn wrong(what: &'static str, found: impl Into<String>, next: impl Into<String>) -> Check {
    check(what, Level::Wrong, found, next)
}

pub fn run(doctor: &DoctorArgs) -> anyhow::Result<ExitCode> {
    let paths = &doctor.query.paths;
    let status = AgentClient::new(&paths.socket).status().ok();
    let cgroup = served_cgroup(doctor.cgroup.clone(), status.as_ref());
    let pin_dir = pin_dir(paths, status.as_ref());
    let mut checks =
        vec![capabilities(), kernel(), btf(), bpffs(&pin_dir), cgroup2(cgroup.as_deref()), errno(), udp_sockets()];
    checks.push(kernel_mount::kernel_mounts());
    checks.extend(packet_path::checks(status.as_ref()));
    checks.extend(status.and_then(|status| api_server(&status, &pin_dir)));
    checks.extend(cgroup.as_deref().map(hooks).unwrap_or_default());
    print::write(doctor.query.output, &checks, || table(&checks))?;
    let failed = checks.iter().any(|check| check.level == Level::Wrong);
    Ok(if failed { ExitCode::from(CHECK_FAILED) } else { ExitCode::SUCCESS })
}

/// The cgroup of the option, else that of the running agent, else the root of cgroup2. An agent in a container may name
/// a path that does not exist here.
fn served_cgroup(given: Option<PathBuf>, status: Option<&AgentStatus>) -> Option<PathBuf> {
    let reported = status.map(|status| PathBuf::from(&status.kernel.cgroup)).filter(|path| path.is_dir());
    given.or(reported).or_else(|| cgroup::root().ok())
}

fn table(checks: &[Check]) -> String {
    let mark = |level| match level {
        Level::Ok => "ok",
        Level::Note => "note",
        Level::Wrong => "WRONG",
    };
    let cells = |c: &Check| vec![mark(c.level).to_owned(), c.what.to_owned(), c.found.clone(), c.next.clone()];
    print::table(&["", "CHECK", "FOUND", "WHAT TO DO"], &checks.iter().map(cells).collect::<Vec<_>>())
}

fn capabilities() -> Check {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|l| l.strip_prefix("CapEff:")).unwrap_or("0").trim().to_owned();
    let bits = u64::from_str_radix(&effective, 16).unwrap_or(0);
    let needed = [(39, "CAP_BPF"), (12, "CAP_NET_ADMIN"), (38, "CAP_PERFMON"), (21, "CAP_SYS_ADMIN")];
    let missing: Vec<&str> = needed.iter().filter(|(bit, _)| bits >> bit & 1 == 0).map(|(_, name)| *name).collect();
    if missing.is_empty() {
        return ok("capabilities", "CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON, CAP_SYS_ADMIN");
    }
    let next = "run as root, or add these capabilities";
    wrong("capabilities", format!("missing: {}", missing.join(", ")), next)
}

fn kernel_release() -> (String, (u32, u32)) {
    let text = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned();
    let mut numbers = text.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    (text, version)
}

fn kernel() -> Check {
    match kernel_release() {
        (text, version) if version >= (6, 1) => ok("kernel", text),
        (text, _) => wrong("kernel", format!("{text} is older than 6.1"), "boot a kernel 6.1 or newer"),
    }
}

fn btf() -> Check {
    match Path::new("/sys/kernel/btf/vmlinux").exists() {
        true => ok("BTF", "/sys/kernel/btf/vmlinux"),
        false => wrong("BTF", "the kernel has no BTF", "boot a kernel with CONFIG_DEBUG_INFO_BTF=y"),
    }
}

fn bpffs(pin_dir: &Path) -> Check {
    match is_bpffs(pin_dir) {
        true => ok("bpffs", format!("{} is in a bpffs", pin_dir.display())),
        false => wrong("bpffs", format!("{} is not in a bpffs", pin_dir.display()), "mount -t bpf bpf /sys/fs/bpf"),
    }
}

fn cgroup2(cgroup: Option<&Path>) -> Check {
    let mounts: Vec<String> = cgroup::mounts().iter().map(|m| m.display().to_string()).collect();
    let Some(cgroup) = cgroup else {
        return wrong("cgroup2", "not mounted", "mount -t cgroup2 none /sys/fs/cgroup/unified");
    };
    if !cgroup::is_cgroup2(cgroup) {
        return wrong(
            "cgroup2",
            format!("{} is not cgroup2", cgroup.display()),
            "give a directory of cgroup2 by --cgroup",
        );
    }
    let found = format!("{} (mounted at {})", cgroup.display(), mounts.join(" "));
    match std::fs::read_to_string("/proc/self/cgroup").is_ok_and(|text| text.contains("0::/..")) {
        true => check(
            "cgroup2",
            Level::Note,
            found,
            "this process is in a private cgroup namespace: give --cgroup a path of the host",
        ),
        false => ok("cgroup2", found),
    }
}

/// Without kube-proxy, an agent that reaches its API server by a service address cannot start: it would have to resolve
/// that address first.
fn api_server(status: &AgentStatus, pin_dir: &Path) -> Option<Check> {
    let server = status.source.as_ref()?.name.as_str();
    let host = server.split_once("://")?.1.trim_end_matches('/');
    let address: SocketAddr = host.parse().or_else(|_| format!("{host}:443").parse()).ok()?;
    let key = FrontendKey::new(address.ip().into(), address.port(), Protocol::Tcp);
    let is_service = LiveTables::open(pin_dir).ok()?.rows.frontends.contains_key(&key);
    Some(api_server_check(server, is_service, status.beside_kube_proxy))
}

fn api_server_check(server: &str, is_service: bool, beside_kube_proxy: bool) -> Check {
    match (is_service, beside_kube_proxy) {
        (false, _) => ok("API server", server),
        (true, true) => ok("API server", format!("{server}, a service address that kube-proxy resolves too")),
        (true, false) => wrong(
            "API server",
            format!("{server} is a service address, which only this agent resolves"),
            "give the addresses of the control plane by --api-server",
        ),
    }
}

fn errno() -> Check {
    match kernel_release().1 >= (5, 18) {
        true => ok("errno of a refusal", "ECONNREFUSED"),
        false => {
            wrong("errno of a refusal", "EPERM, since the kernel is older than 5.18", "boot a kernel 5.18 or newer")
        }
    }
}

fn udp_sockets() -> Check {
    const WHAT: &str = "stale UDP sockets";
    match kernel_release().1 {
        version if version >= (6, 16) => ok(WHAT, "destroyed exactly, in one pass"),
        version if version >= (6, 5) => {
            ok(WHAT, "destroyed exactly, in repeated passes (before 6.16 a pass may skip some)")
        }
        _ => check(
            WHAT,
            Level::Note,
            "destroyed by netlink; a socket that reconnects in that moment is destroyed too",
            "kernel 6.5 or newer is exact",
        ),
    }
}

/// Programs of others at the hooks run in addition to those of the agent. Links cannot be detached by cgroup, so other
/// programs cannot remove them.
fn hooks(cgroup: &Path) -> Vec<Check> {
    let attached = match query::attached(cgroup) {
        Ok(attached) => attached,
        Err(error) => return vec![wrong("hooks", error.to_string(), "run as root")],
    };
    let (ours, others): (Vec<_>, Vec<_>) = attached.into_iter().partition(query::is_ours);
    let at = cgroup.display();
    let mut checks = vec![match ours.len() {
        0 => check("hooks", Level::Note, format!("none of {HOOKS} at {at}"), "start an agent, or give its --cgroup"),
        HOOKS => ok("hooks", format!("all {HOOKS} at {at}")),
        n => wrong("hooks", format!("{n} of {HOOKS} at {at}"), "restart the agent: it attaches the missing ones"),
    }];
    for other in others {
        let found = format!("{}: program {} ({})", other.hook, other.id, other.name);
        let next = "it runs in addition to Beeline; if it resolves services too, disable one of the two";
        checks.push(check("other program", Level::Note, found, next));
    }
    checks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_address_of_the_api_server_is_wrong_only_without_kube_proxy() {
        let level = |is_service, beside| api_server_check("https://10.96.0.1:443/", is_service, beside).level;
        assert_eq!(level(true, false), Level::Wrong);
        assert_eq!(level(true, true), Level::Ok, "the default of the chart");
        assert_eq!(level(false, false), Level::Ok);
    }
}
