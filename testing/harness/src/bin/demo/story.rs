//! What happens on the stage: every kind of address is dialled, then a backend dies.

use std::{net::SocketAddr, time::Instant};

use anyhow::Result;
use beeline_harness::{Dial, Errno, Example, Expect, Kind, Trial, mapped};

use crate::table::Table;

const WEB: &str = "10.96.0.10:80";
const CART: &str = "10.96.0.20:80";
const DNS: &str = "10.96.0.53:53";

fn at(address: &str) -> SocketAddr {
    address.parse().expect("a literal")
}

pub fn every_address(example: &Example, table: &mut Table) -> Result<()> {
    let pods = || Expect::every(example.names());
    let http = |to, expect| Trial::new(Kind::Tcp, to, expect);
    let rows = [
        ("clusterIP", http(at(WEB), pods())),
        ("clusterIP", http(at("[fd00:96::10]:80"), pods())),
        ("clusterIP", http(mapped(at(WEB)), pods())),
        ("nodePort", http(at("172.31.0.11:30080"), pods())),
        ("nodePort, other node", http(at("172.31.0.12:30080"), pods())),
        ("loadBalancer", http(at("203.0.113.10:80"), pods())),
        ("loadBalancer", http(at("[2001:db8::10]:80"), pods())),
        ("externalIP", http(at("198.51.100.10:80"), pods())),
        ("clusterIP", Trial::new(Kind::UdpConnected, at(DNS), pods())),
        ("clusterIP", Trial::new(Kind::UdpSendTo, at(DNS), pods())),
        ("clusterIP", Trial::new(Kind::UdpSendTo, at("[fd00:96::53]:53"), pods())),
        ("clusterIP, affinity", http(at(CART), Expect::same(example.names()))),
        ("clusterIP, Local", http(at("10.96.0.30:514"), Expect::every(["pod-b"]))),
        ("no endpoints", http(at("10.96.0.40:80"), Expect::Refused)),
        ("no such port", http(at("10.96.0.10:81"), Expect::Refused)),
        ("a pod, untouched", http(at("10.244.2.2:8080"), Expect::every(["pod-d"]))),
    ];
    rows.iter().try_for_each(|(kind, trial)| dial(example, table, kind, trial))
}

fn dial(example: &Example, table: &mut Table, kind: &str, trial: &Trial) -> Result<()> {
    let seen = trial.run(&example.client)?;
    table.row(kind, trial, &seen);
    Ok(())
}

/// The backend that affinity kept is killed, so that a client which clung to it would be seen.
pub fn a_backend_dies(example: &mut Example, table: &mut Table) -> Result<()> {
    let kept = example.client.dial(&Dial::new(Kind::Tcp, at(CART)))?.name().to_owned();
    let stale = example.client.connected_to(at(DNS), &kept)?;
    example.backends.retain(|backend| backend.name() != kept);
    example.remove(&kept)?;
    let removed = Instant::now();
    let cut = stale.poll(false, 5000)?;
    let (ms, is_cut) = (removed.elapsed().as_millis(), cut == (true, Some(Errno::ECONNABORTED)));
    let end = if is_cut { format!("cut off {ms} ms later") } else { format!("not cut off: {cut:?}") };
    table.turn(&format!("{kept} is killed and leaves the manifests; a UDP socket connected to it is {end}"), is_cut);
    drop(stale);
    let rows = [
        ("clusterIP", Trial::new(Kind::Tcp, at(WEB), Expect::every(example.names()))),
        ("clusterIP", Trial::new(Kind::UdpConnected, at(DNS), Expect::every(example.names()))),
        ("clusterIP, affinity", Trial::new(Kind::Tcp, at(CART), Expect::same(example.names()))),
    ];
    rows.iter().try_for_each(|(kind, trial)| dial(example, table, kind, trial))
}

/// What the command line says of it.
pub fn ask(example: &Example, args: &[&str]) -> Result<()> {
    println!("$ beeline {}\n{}", args.join(" "), example.agent.ask(args)?);
    Ok(())
}
