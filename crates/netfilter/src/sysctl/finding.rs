//! Settings with which packets of services are lost or take another path.

use std::{fmt, io};

use super::{Sysctl, Sysctls};

/// `rp_filter`: 1 drops packets that arrive on another interface than the one that leads to their source.
const STRICT: u64 = 1;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SysctlFinding {
    /// The kernel does not forward packets to backends.
    ForwardingOff {
        setting: Sysctl,
    },
    /// Packets are dropped on this interface if the route to their source leads through another one.
    StrictReversePathFilter {
        interface: String,
    },
    /// Packets between ports of a bridge pass the hooks of netfilter, so they are seen on the ports and on the bridge.
    BridgeCallsIptables,
    Unreadable {
        path: String,
        error: String,
    },
}

impl fmt::Display for SysctlFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SysctlFinding::ForwardingOff { setting } => {
                write!(f, "/{} is 0: packets to backends are not forwarded; set it to 1", setting.path())
            }
            SysctlFinding::StrictReversePathFilter { interface } => write!(
                f,
                "rp_filter of {interface} is 1 (strict): packets whose source is routed through another interface are \
                 dropped; set net.ipv4.conf.{interface}.rp_filter to 2 if clients use several paths"
            ),
            SysctlFinding::BridgeCallsIptables => {
                write!(f, "/{} is 1: bridged packets pass netfilter", Sysctl::BridgeCallsIptables.path())
            }
            SysctlFinding::Unreadable { path, error } => write!(f, "cannot read /{path}: {error}"),
        }
    }
}

impl Sysctls {
    /// Reads all settings that matter to forwarding. Settings of parts that the kernel does not have are left out.
    pub fn findings(&self) -> Vec<SysctlFinding> {
        let mut findings = Vec::new();
        for setting in [Sysctl::Ipv4Forwarding, Sysctl::Ipv6Forwarding] {
            findings.extend(self.finding(setting, 0, SysctlFinding::ForwardingOff { setting }));
        }
        findings.extend(self.finding(Sysctl::BridgeCallsIptables, 1, SysctlFinding::BridgeCallsIptables));
        match self.reverse_path_filters() {
            Ok(filters) => findings.extend(strict_filters(&filters)),
            Err(error) => findings.push(unreadable("proc/sys/net/ipv4/conf", &error)),
        }
        findings
    }

    fn finding(&self, setting: Sysctl, bad: u64, finding: SysctlFinding) -> Option<SysctlFinding> {
        match self.read(setting) {
            Ok(value) => (value == bad).then_some(finding),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => Some(unreadable(setting.path(), &error)),
        }
    }
}

fn unreadable(path: &str, error: &io::Error) -> SysctlFinding {
    SysctlFinding::Unreadable { path: path.to_owned(), error: error.to_string() }
}

/// The kernel uses the larger one of the values of `all` and of the interface. 2 (loose) is larger than 1 (strict).
fn strict_filters(filters: &[(String, u64)]) -> impl Iterator<Item = SysctlFinding> {
    let all = filters.iter().find(|(name, _)| name == "all").map_or(0, |(_, value)| *value);
    let interfaces = filters.iter().filter(|(name, _)| !["all", "default", "lo"].contains(&name.as_str()));
    let strict = interfaces.filter(move |(_, value)| all.max(*value) == STRICT);
    strict.map(|(interface, _)| SysctlFinding::StrictReversePathFilter { interface: interface.clone() })
}
