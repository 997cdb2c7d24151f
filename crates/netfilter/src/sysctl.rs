//! Kernel settings that the packet path depends on: which of them prevent that it works, and the conntrack settings
//! that kube-proxy writes too.
//!
//! Files below `/proc/sys/net` belong to the network namespace of the thread that opens them. In a container without
//! privileges they are read-only; every function reports what could not be read or written and goes on.

mod conntrack;
mod finding;

use std::{
    fs, io,
    path::{Path, PathBuf},
};

pub use conntrack::{ConntrackSettings, SettingOutcome, SettingResult};
pub use finding::SysctlFinding;

/// A setting with one number as its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sysctl {
    Ipv4Forwarding,
    Ipv6Forwarding,
    /// Whether packets between ports of a bridge pass the hooks of IPv4. Exists if br_netfilter is loaded.
    BridgeCallsIptables,
    ConntrackMax,
    ConntrackTcpTimeoutEstablished,
    ConntrackTcpTimeoutCloseWait,
    /// Whether packets outside of the TCP window are accepted.
    ConntrackTcpBeLiberal,
    /// The number of buckets of the conntrack table. A parameter of the module, for all network namespaces.
    ConntrackHashSize,
}

impl Sysctl {
    /// The path below the root of the file system.
    pub fn path(self) -> &'static str {
        match self {
            Sysctl::Ipv4Forwarding => "proc/sys/net/ipv4/ip_forward",
            Sysctl::Ipv6Forwarding => "proc/sys/net/ipv6/conf/all/forwarding",
            Sysctl::BridgeCallsIptables => "proc/sys/net/bridge/bridge-nf-call-iptables",
            Sysctl::ConntrackMax => "proc/sys/net/netfilter/nf_conntrack_max",
            Sysctl::ConntrackTcpTimeoutEstablished => "proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established",
            Sysctl::ConntrackTcpTimeoutCloseWait => "proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait",
            Sysctl::ConntrackTcpBeLiberal => "proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal",
            Sysctl::ConntrackHashSize => "sys/module/nf_conntrack/parameters/hashsize",
        }
    }
}

/// The settings of this machine, or those below another directory where the host's file systems are mounted.
#[derive(Clone, Debug)]
pub struct Sysctls {
    root: PathBuf,
}

impl Default for Sysctls {
    fn default() -> Self {
        Sysctls::below("/")
    }
}

impl Sysctls {
    /// Uses `proc` and `sys` below this directory.
    pub fn below(root: impl AsRef<Path>) -> Self {
        Sysctls { root: root.as_ref().to_owned() }
    }

    pub fn read(&self, setting: Sysctl) -> io::Result<u64> {
        read_number(&self.root.join(setting.path()))
    }

    pub fn write(&self, setting: Sysctl, value: u64) -> io::Result<()> {
        // The file exists: creating it would hide that the setting does not.
        let mut file = fs::OpenOptions::new().write(true).open(self.root.join(setting.path()))?;
        io::Write::write_all(&mut file, format!("{value}\n").as_bytes())
    }

    /// `net.ipv4.conf.*.rp_filter`: the name of the interface, `all` or `default`, and the value.
    pub fn reverse_path_filters(&self) -> io::Result<Vec<(String, u64)>> {
        let mut filters = Vec::new();
        for entry in fs::read_dir(self.root.join("proc/sys/net/ipv4/conf"))? {
            let entry = entry?;
            match read_number(&entry.path().join("rp_filter")) {
                Ok(value) => filters.push((entry.file_name().to_string_lossy().into_owned(), value)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {} // The interface was deleted meanwhile.
                Err(error) => return Err(error),
            }
        }
        filters.sort_unstable();
        Ok(filters)
    }
}

fn read_number(path: &Path) -> io::Result<u64> {
    let text = fs::read_to_string(path)?;
    text.trim().parse().map_err(|_| io::Error::new(io::ErrorKind::InvalidData, format!("{text:?} is no number")))
}
