//! The rules that kube-proxy would write, in its nftables and its iptables mode, for a node namespace.
//!
//! They contain only what a dial from the node evaluates: one nat chain at the output hook, a chain per Service and a
//! chain per endpoint. kube-proxy writes more (postrouting, filter, NodePorts), so this is its best case. Above
//! [`OWN_CHAINS`] Services the others share the chains of the first, because loading chains takes quadratic time. A
//! dial evaluates the same rules in both cases.

use std::{
    fmt::Write as _,
    io::Write as _,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};

use super::objects::{BACKENDS, POD_PORT, SERVICE_PORT, pod_address, service_address};
use crate::isolation::BenchNamespace;

const OWN_CHAINS: u32 = 10_000;
/// Number of Services per nft transaction. With one transaction for all, the kernel takes twice as long.
const BATCH: u32 = 1_000;

fn own_chains(services: u32) -> u32 {
    services.min(OWN_CHAINS)
}

pub fn load_nftables(netns: &BenchNamespace, services: u32) -> Result<()> {
    let mut batch = String::from(
        "add table ip kube-proxy\n\
         add map ip kube-proxy service-ips { type ipv4_addr . inet_proto . inet_service : verdict; }\n\
         add chain ip kube-proxy mark-for-masquerade\n\
         add rule ip kube-proxy mark-for-masquerade meta mark set mark or 0x4000\n\
         add chain ip kube-proxy services\n\
         add rule ip kube-proxy services ip daddr . meta l4proto . th dport vmap @service-ips\n\
         add chain ip kube-proxy nat-output { type nat hook output priority -100; }\n\
         add rule ip kube-proxy nat-output jump services\n",
    );
    for first in (0..own_chains(services)).step_by(BATCH as usize) {
        for service in first..own_chains(services).min(first + BATCH) {
            nftables_chains(&mut batch, service)?;
        }
        nft(netns, &std::mem::take(&mut batch))?;
    }
    for service in 0..services {
        let (at, chain) = (service_address(service), service % OWN_CHAINS);
        let element = format!("{{ {at} . tcp . {SERVICE_PORT} : goto service-{chain} }}");
        writeln!(batch, "add element ip kube-proxy service-ips {element}")?;
    }
    nft(netns, &batch)
}

fn nftables_chains(rules: &mut String, service: u32) -> Result<()> {
    let mut picks = Vec::new();
    for (index, pod) in (service * BACKENDS..(service + 1) * BACKENDS).enumerate() {
        let at = pod_address(pod);
        writeln!(rules, "add chain ip kube-proxy endpoint-{pod}")?;
        writeln!(rules, "add rule ip kube-proxy endpoint-{pod} ip saddr {at} jump mark-for-masquerade")?;
        writeln!(rules, "add rule ip kube-proxy endpoint-{pod} meta l4proto tcp dnat to {at}:{POD_PORT}")?;
        picks.push(format!("{index} : goto endpoint-{pod}"));
    }
    writeln!(rules, "add chain ip kube-proxy service-{service}")?;
    let picks = picks.join(", ");
    writeln!(rules, "add rule ip kube-proxy service-{service} numgen random mod {BACKENDS} vmap {{ {picks} }}")?;
    Ok(())
}

fn nft(netns: &BenchNamespace, rules: &str) -> Result<()> {
    run_with_rules(netns, &["nft", "-f", "-"], rules)
}

pub fn load_iptables(netns: &BenchNamespace, services: u32) -> Result<()> {
    let mut rules = String::from("*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-MARK-MASQ - [0:0]\n");
    for service in 0..own_chains(services) {
        writeln!(rules, ":KUBE-SVC-{service:016} - [0:0]")?;
        for pod in service * BACKENDS..(service + 1) * BACKENDS {
            writeln!(rules, ":KUBE-SEP-{pod:016} - [0:0]")?;
        }
    }
    rules += "-A OUTPUT -j KUBE-SERVICES\n-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000\n";
    for service in 0..services {
        let (at, chain) = (service_address(service), service % OWN_CHAINS);
        let matches = format!("-d {at}/32 -p tcp -m tcp --dport {SERVICE_PORT}");
        writeln!(rules, "-A KUBE-SERVICES {matches} -j KUBE-SVC-{chain:016}")?;
    }
    for service in 0..own_chains(services) {
        iptables_chains(&mut rules, service)?;
    }
    rules += "COMMIT\n";
    run_with_rules(netns, &["iptables-legacy-restore"], &rules)
}

fn iptables_chains(rules: &mut String, service: u32) -> Result<()> {
    for index in 0..BACKENDS {
        let (pod, left) = (service * BACKENDS + index, BACKENDS - index);
        let chance = match left {
            1 => String::new(),
            left => format!(" -m statistic --mode random --probability {:.10}", 1.0 / f64::from(left)),
        };
        writeln!(rules, "-A KUBE-SVC-{service:016}{chance} -j KUBE-SEP-{pod:016}")?;
        let at = pod_address(pod);
        writeln!(rules, "-A KUBE-SEP-{pod:016} -s {at}/32 -j KUBE-MARK-MASQ")?;
        writeln!(rules, "-A KUBE-SEP-{pod:016} -p tcp -m tcp -j DNAT --to-destination {at}:{POD_PORT}")?;
    }
    Ok(())
}

/// Runs a program inside the namespace with the rules as its input.
fn run_with_rules(netns: &BenchNamespace, program: &[&str], rules: &str) -> Result<()> {
    let mut child = Command::new("ip")
        .args(["netns", "exec", netns.name()])
        .args(program)
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("ip: is iproute2 installed?")?;
    let written = child.stdin.take().context("no stdin")?.write_all(rules.as_bytes());
    let output = child.wait_with_output()?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {}", program.join(" "), stderr.lines().next().unwrap_or("failed"));
    written.with_context(|| program.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_service_picks_among_its_own_endpoints() -> Result<()> {
        let (mut nftables, mut iptables) = (String::new(), String::new());
        nftables_chains(&mut nftables, 1)?;
        iptables_chains(&mut iptables, 1)?;
        assert!(nftables.contains("vmap { 0 : goto endpoint-3, 1 : goto endpoint-4, 2 : goto endpoint-5 }"));
        assert!(iptables.contains("--probability 0.3333333333 -j KUBE-SEP-0000000000000003"));
        assert!(iptables.contains("-A KUBE-SVC-0000000000000001 -j KUBE-SEP-0000000000000005"));
        Ok(())
    }
}
