//! Settings in real network namespaces. The conntrack maximum and the hash size exist once for the machine, so they are
//! files in a directory here.

mod fixture;

use std::{fs, path::Path, time::Duration};

use beeline_harness::TestNetwork;
use beeline_netfilter::sysctl::{ConntrackSettings, SettingOutcome, SettingResult, Sysctl, SysctlFinding, Sysctls};
use fixture::open;

/// Leaves everything as it is.
const NOTHING: ConntrackSettings = ConntrackSettings {
    max_per_core: 0,
    min: 0,
    tcp_timeout_established: Duration::ZERO,
    tcp_timeout_close_wait: Duration::ZERO,
    tcp_be_liberal: false,
};

/// Setting, value before, and whether it was written.
fn summary(results: &[SettingResult]) -> Vec<(Sysctl, Option<u64>, bool)> {
    let line = |result: &SettingResult| match &result.outcome {
        SettingOutcome::Failed(error) => panic!("{:?}: {error}", result.setting),
        outcome => (result.setting, result.before, matches!(outcome, SettingOutcome::Written)),
    };
    results.iter().map(line).collect()
}

#[test]
fn timeouts_are_set_once_and_in_both_directions() {
    let network = TestNetwork::new(0).unwrap();
    open(network.node()).ensure().unwrap();
    let settings = ConntrackSettings { max_per_core: 0, tcp_be_liberal: true, ..ConntrackSettings::default() };
    let set = || network.node().run_in(|| Sysctls::default().set_conntrack(&settings, 1)).unwrap();
    let (established, close_wait, liberal) =
        (Sysctl::ConntrackTcpTimeoutEstablished, Sysctl::ConntrackTcpTimeoutCloseWait, Sysctl::ConntrackTcpBeLiberal);
    let first = [(established, Some(432_000), true), (close_wait, Some(60), true), (liberal, Some(0), true)];
    assert_eq!(summary(&set()), first);
    let second = [(established, Some(86_400), false), (close_wait, Some(3600), false), (liberal, Some(1), false)];
    assert_eq!(summary(&set()), second);
    let untouched = network.node().run_in(|| Sysctls::default().set_conntrack(&NOTHING, 1)).unwrap();
    assert!(untouched.is_empty(), "{untouched:?}");
}

/// Only the machine's first network namespace may write the maximum.
#[test]
fn a_setting_that_cannot_be_written_does_not_stop_the_others() {
    let network = TestNetwork::new(0).unwrap();
    open(network.node()).ensure().unwrap();
    let results = network.node().run_in(|| {
        let sysctls = Sysctls::default();
        let min = u32::try_from(sysctls.read(Sysctl::ConntrackMax).unwrap() + 1).unwrap();
        let close_wait = Duration::from_secs(3600);
        let settings = ConntrackSettings { max_per_core: 1, min, tcp_timeout_close_wait: close_wait, ..NOTHING };
        sysctls.set_conntrack(&settings, 1)
    });
    let results = results.unwrap();
    assert_eq!(results.len(), 2, "the hash size stays: {results:?}");
    assert_eq!(results[0].setting, Sysctl::ConntrackMax);
    assert!(matches!(results[0].outcome, SettingOutcome::Failed(_)), "{results:?}");
    assert!(matches!(results[1].outcome, SettingOutcome::Written), "{results:?}");
}

fn write(root: &Path, setting: Sysctl, value: u64) {
    let path = root.join(setting.path());
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, format!("{value}\n")).unwrap();
}

#[test]
fn the_maximum_and_the_hash_size_are_raised_and_never_lowered() {
    let root = tempfile::tempdir().unwrap();
    let sysctls = Sysctls::below(root.path());
    let settings = ConntrackSettings {
        tcp_timeout_established: Duration::ZERO,
        tcp_timeout_close_wait: Duration::ZERO,
        ..ConntrackSettings::default()
    };
    // (maximum and hash size before, both after), with 8 processors: 262144 entries.
    for (before, after) in [((65_536, 16_384), (262_144, 65_536)), ((262_144, 1024), (262_144, 65_536))] {
        write(root.path(), Sysctl::ConntrackMax, before.0);
        write(root.path(), Sysctl::ConntrackHashSize, before.1);
        sysctls.set_conntrack(&settings, 8);
        let read = |setting| sysctls.read(setting).unwrap();
        assert_eq!((read(Sysctl::ConntrackMax), read(Sysctl::ConntrackHashSize)), after, "{before:?}");
    }
    write(root.path(), Sysctl::ConntrackMax, 524_288);
    write(root.path(), Sysctl::ConntrackHashSize, 131_072);
    let results = summary(&sysctls.set_conntrack(&settings, 8));
    let unchanged = [(Sysctl::ConntrackMax, Some(524_288), false), (Sysctl::ConntrackHashSize, Some(131_072), false)];
    assert_eq!(results, unchanged);
    fs::remove_file(root.path().join(Sysctl::ConntrackHashSize.path())).unwrap();
    let results = sysctls.set_conntrack(&settings, 8);
    assert!(matches!(results[1].outcome, SettingOutcome::Failed(_)), "a missing file is not created: {results:?}");
}

#[test]
fn settings_that_prevent_forwarding_are_found() {
    let network = TestNetwork::new(0).unwrap();
    let node = network.node();
    let findings = || {
        let mut findings = node.run_in(|| Sysctls::default().findings()).unwrap();
        // Depends on whether br_netfilter is loaded on this machine.
        findings.retain(|finding| *finding != SysctlFinding::BridgeCallsIptables);
        findings
    };
    node.namespace.sysctl(&[("ipv4/conf/all/rp_filter", "0"), ("ipv4/conf/eth0/rp_filter", "0")]).unwrap();
    node.namespace.sysctl(&[("ipv4/conf/cni0/rp_filter", "2")]).unwrap();
    assert_eq!(findings(), []);
    node.namespace.sysctl(&[("ipv4/conf/all/rp_filter", "1")]).unwrap();
    assert_eq!(findings(), [SysctlFinding::StrictReversePathFilter { interface: "eth0".into() }]);
    node.namespace.sysctl(&[("ipv4/conf/all/rp_filter", "2")]).unwrap();
    assert_eq!(findings(), []);
    node.run_in(|| Sysctls::default().write(Sysctl::Ipv4Forwarding, 0)).unwrap().unwrap();
    node.run_in(|| Sysctls::default().write(Sysctl::Ipv6Forwarding, 0)).unwrap().unwrap();
    let off = [Sysctl::Ipv4Forwarding, Sysctl::Ipv6Forwarding].map(|setting| SysctlFinding::ForwardingOff { setting });
    assert_eq!(findings(), off);
}

#[test]
fn a_bridge_that_calls_iptables_and_an_unreadable_setting_are_findings() {
    let root = tempfile::tempdir().unwrap();
    write(root.path(), Sysctl::BridgeCallsIptables, 1);
    write(root.path(), Sysctl::Ipv4Forwarding, 1);
    fs::create_dir_all(root.path().join("proc/sys/net/ipv4/conf")).unwrap();
    assert_eq!(Sysctls::below(root.path()).findings(), [SysctlFinding::BridgeCallsIptables]);
    fs::write(root.path().join(Sysctl::Ipv4Forwarding.path()), "yes\n").unwrap();
    let findings = Sysctls::below(root.path()).findings();
    assert!(findings[0].to_string().contains("cannot read /proc/sys/net/ipv4/ip_forward"), "{findings:?}");
}
