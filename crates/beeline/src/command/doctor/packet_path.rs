//! What the packet path needs of the kernel and the host: the conntrack functions for BPF, settings of forwarding and of
//! connection tracking, and chains of other programs that drop forwarded packets.

use super::{Check, Level, check, ok, wrong};
use beeline_api::{AgentStatus, PacketPathStatus};
use beeline_netfilter::Conntrack;
use beeline_netfilter::sysctl::{Sysctl, SysctlFinding, Sysctls};

const WHAT: &str = "packet path";
const FUNCTIONS: [&str; 4] = ["bpf_skb_ct_lookup", "bpf_skb_ct_alloc", "bpf_ct_insert_entry", "bpf_ct_set_nat_info"];
/// A conntrack table that is fuller than this will soon refuse new connections.
const NEARLY_FULL_PERCENT: u64 = 90;

pub fn checks(status: Option<&AgentStatus>) -> Vec<Check> {
    let mut checks = vec![functions(&std::fs::read_to_string("/proc/kallsyms").unwrap_or_default())];
    let Some(path) = status.and_then(|status| status.packet_path.as_ref()) else { return checks };
    checks.push(serving(path));
    checks.extend(Sysctls::default().findings().iter().map(finding));
    checks.extend(usage());
    checks
}

/// The kernel lists the functions of loaded modules too.
fn functions(symbols: &str) -> Check {
    let has = |name: &str| symbols.lines().any(|line| line.split_whitespace().nth(2) == Some(name));
    let missing: Vec<&str> = FUNCTIONS.into_iter().filter(|name| !has(name)).collect();
    match missing[..] {
        [] => ok(WHAT, "the kernel has the conntrack functions for BPF"),
        _ => check(
            WHAT,
            Level::Note,
            format!("the kernel lacks {}", missing.join(", ")),
            "needed for --packet-path on: modprobe nf_conntrack nf_nat, on a kernel with CONFIG_DEBUG_INFO_BTF_MODULES=y",
        ),
    }
}

fn serving(path: &PacketPathStatus) -> Check {
    let devices = path.devices.join(" ");
    match (path.serving, &path.problem) {
        (true, _) => ok(WHAT, format!("serves packets from outside at {devices}")),
        (false, Some(problem)) => {
            wrong(WHAT, problem.clone(), "packets from outside are not served: see the agent's log")
        }
        (false, None) => wrong(WHAT, "packets from outside are not served", "see `beeline status` and the agent's log"),
    }
}

fn finding(finding: &SysctlFinding) -> Check {
    let level = match finding {
        SysctlFinding::ForwardingOff { setting: Sysctl::Ipv4Forwarding } => Level::Wrong,
        _ => Level::Note,
    };
    check("forwarding", level, finding.to_string(), "")
}

fn usage() -> Option<Check> {
    let usage = Conntrack::open().and_then(|mut conntrack| conntrack.usage()).ok()?;
    let found = format!("{} of {} entries in use", usage.entries, usage.max);
    let is_nearly_full = u64::from(usage.entries) * 100 >= u64::from(usage.max) * NEARLY_FULL_PERCENT;
    Some(match is_nearly_full {
        true => wrong("conntrack", found, "raise net.netfilter.nf_conntrack_max, or --conntrack-max-per-core"),
        false => ok("conntrack", found),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_functions_are_named() {
        let symbols = |names: &[&str]| {
            names.iter().map(|name| format!("ffffffff81f43ce0 T {name}\t[nf_conntrack]\n")).collect::<String>()
        };
        assert_eq!(functions(&symbols(&FUNCTIONS)).level, Level::Ok);
        let missing = functions(&symbols(&FUNCTIONS[..3]));
        assert_eq!((missing.level, missing.found.as_str()), (Level::Note, "the kernel lacks bpf_ct_set_nat_info"));
    }
}
