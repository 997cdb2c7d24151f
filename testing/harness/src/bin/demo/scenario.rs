//! The demo's scenario: connect to every kind of address, then kill a backend and connect again.

use std::{net::SocketAddr, time::Instant};

use anyhow::Result;
use beeline_harness::{DialCheck, DialKind, DialRequest, Errno, ExampleCluster, Expected, mapped};

use crate::table::ResultTable;

const WEB: &str = "10.96.0.10:80";
const CART: &str = "10.96.0.20:80";
const DNS: &str = "10.96.0.53:53";

fn address(text: &str) -> SocketAddr {
    text.parse().expect("a literal address")
}

pub fn dial_every_address(example: &ExampleCluster, table: &mut ResultTable) -> Result<()> {
    let pods = || Expected::every(example.names());
    let tcp = |to, expected| DialCheck::new(DialKind::Tcp, to, expected);
    let rows = [
        ("ClusterIP", tcp(address(WEB), pods())),
        ("ClusterIP, IPv6", tcp(address("[fd00:96::10]:80"), pods())),
        ("ClusterIP, IPv4-mapped IPv6", tcp(mapped(address(WEB)), pods())),
        ("NodePort of node-1", tcp(address("172.31.0.11:30080"), pods())),
        ("NodePort of node-2", tcp(address("172.31.0.12:30080"), pods())),
        ("load balancer IP", tcp(address("203.0.113.10:80"), pods())),
        ("load balancer IP, IPv6", tcp(address("[2001:db8::10]:80"), pods())),
        ("external IP", tcp(address("198.51.100.10:80"), pods())),
        ("ClusterIP, connected socket", DialCheck::new(DialKind::UdpConnected, address(DNS), pods())),
        ("ClusterIP, sendto()", DialCheck::new(DialKind::UdpSendTo, address(DNS), pods())),
        ("ClusterIP, IPv6, sendto()", DialCheck::new(DialKind::UdpSendTo, address("[fd00:96::53]:53"), pods())),
        ("ClusterIP, session affinity", tcp(address(CART), Expected::same(example.names()))),
        ("ClusterIP, node-local only", tcp(address("10.96.0.30:514"), Expected::every(["pod-b"]))),
        ("Service without endpoints", tcp(address("10.96.0.40:80"), Expected::Refused)),
        ("port that is not in the Service", tcp(address("10.96.0.10:81"), Expected::Refused)),
        ("pod IP, no Service", tcp(address("10.244.2.2:8080"), Expected::every(["pod-d"]))),
    ];
    rows.iter().try_for_each(|(kind, check)| dial(example, table, kind, check))
}

fn dial(example: &ExampleCluster, table: &mut ResultTable, kind: &str, check: &DialCheck) -> Result<()> {
    let results = check.run(&example.client)?;
    table.add_row(kind, check, &results);
    Ok(())
}

/// Kills the backend to which session affinity leads, so that a client that keeps using it is noticed.
pub fn kill_a_backend(example: &mut ExampleCluster, table: &mut ResultTable) -> Result<()> {
    let killed = example.client.dial(&DialRequest::new(DialKind::Tcp, address(CART)))?.name().to_owned();
    let stale = example.client.connect_udp_to(address(DNS), &killed)?;
    example.backends.retain(|backend| backend.name() != killed);
    example.remove_endpoints(&killed)?;
    let removed = Instant::now();
    let result = stale.poll(false, 5000)?;
    let (ms, is_closed) = (removed.elapsed().as_millis(), result == (true, Some(Errno::ECONNABORTED)));
    let outcome = if is_closed { format!("was closed after {ms} ms") } else { format!("was not closed: {result:?}") };
    table.add_event(&format!("{killed} was killed and removed from the manifests."), true);
    table.add_event(&format!("A UDP socket that was connected to {killed} {outcome}."), is_closed);
    drop(stale);
    let rows = [
        ("ClusterIP", DialCheck::new(DialKind::Tcp, address(WEB), Expected::every(example.names()))),
        (
            "ClusterIP, connected socket",
            DialCheck::new(DialKind::UdpConnected, address(DNS), Expected::every(example.names())),
        ),
        ("ClusterIP, session affinity", DialCheck::new(DialKind::Tcp, address(CART), Expected::same(example.names()))),
    ];
    rows.iter().try_for_each(|(kind, check)| dial(example, table, kind, check))
}

/// Runs a beeline command and prints its output.
pub fn run_command(example: &ExampleCluster, args: &[&str]) -> Result<()> {
    println!("$ beeline {}\n{}", args.join(" "), example.agent.run(args)?);
    Ok(())
}
