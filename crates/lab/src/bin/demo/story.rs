//! What happens on the stage: every kind of address is dialled, then a backend dies.

use std::{net::SocketAddr, time::Instant};

use anyhow::{Context, Result};
use beeline_lab::{Backend, Client, Errno, Expect, Family, Kind, Place, Socket, Trial, mapped};

use crate::{stage::Stage, table::Table};

const WEB: &str = "10.96.0.10:80";
const CART: &str = "10.96.0.20:80";
const DNS: &str = "10.96.0.53:53";

fn at(address: &str) -> SocketAddr {
    address.parse().expect("a literal")
}

pub fn every_address(stage: &Stage, table: &mut Table) -> Result<()> {
    let pods = || Expect::every(stage.backends.iter().map(Backend::name));
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
        ("clusterIP, affinity", http(at(CART), Expect::same(stage.backends.iter().map(Backend::name)))),
        ("clusterIP, Local", http(at("10.96.0.30:514"), Expect::every(["pod-b"]))),
        ("no endpoints", http(at("10.96.0.40:80"), Expect::Refused)),
        ("no such port", http(at("10.96.0.10:81"), Expect::Refused)),
        ("a pod, untouched", http(at("10.244.2.2:8080"), Expect::every(["pod-d"]))),
    ];
    rows.iter().try_for_each(|(kind, trial)| dial(stage, table, kind, trial))
}

fn dial(stage: &Stage, table: &mut Table, kind: &str, trial: &Trial) -> Result<()> {
    let seen = trial.run(&stage.client)?;
    table.row(kind, trial, &seen);
    Ok(())
}

/// The backend that affinity kept is killed, so that a client which clung to it would be seen.
pub fn a_backend_dies(stage: &mut Stage, table: &mut Table) -> Result<()> {
    let kept = stage.client.dial(&beeline_lab::Dial::new(Kind::Tcp, at(CART)))?.name().to_owned();
    let index = stage.backends.iter().position(|backend| backend.name() == kept).context("affinity kept nobody")?;
    let victim = stage.backends.swap_remove(index);
    let stale = connected_to(&stage.client, &kept)?;
    victim.kill();
    let removed = Instant::now();
    remove_endpoint(stage, stage.place(&kept)?)?;
    let cut = stale.poll(false, 5000)?;
    let (ms, is_cut) = (removed.elapsed().as_millis(), cut == (true, Some(Errno::ECONNABORTED)));
    let end = if is_cut { format!("cut off {ms} ms later") } else { format!("not cut off: {cut:?}") };
    drop(stale);
    table.turn(&format!("{kept} is killed and leaves the manifests; a UDP socket connected to it is {end}"), is_cut);
    let rest = || stage.backends.iter().map(Backend::name);
    let rows = [
        ("clusterIP", Trial::new(Kind::Tcp, at(WEB), Expect::every(rest()))),
        ("clusterIP", Trial::new(Kind::UdpConnected, at(DNS), Expect::every(rest()))),
        ("clusterIP, affinity", Trial::new(Kind::Tcp, at(CART), Expect::same(rest()))),
    ];
    rows.iter().try_for_each(|(kind, trial)| dial(stage, table, kind, trial))
}

/// A UDP socket that was connected through the service and landed at this pod.
fn connected_to<'c>(client: &'c Client, pod: &str) -> Result<Socket<'c>> {
    for _ in 0..200 {
        let socket = client.udp(Family::V4)?;
        socket.connect(at(DNS))?;
        socket.send("who\n")?;
        let (_, answer) = socket.receive()?;
        if answer.starts_with(pod.as_bytes()) {
            return Ok(socket);
        }
    }
    anyhow::bail!("200 UDP dials never reached {pod}")
}

/// The example has one endpoint a line. The name server's file goes last: when its sockets are cut off, the others are in
/// the kernel.
fn remove_endpoint(stage: &Stage, pod: &Place) -> Result<()> {
    let (v4, v6) = (format!("[{}]", pod.v4), format!("[\"{}\"]", pod.v6));
    for file in ["web.yaml", "cart.yaml", "dns.yaml"] {
        let text = stage.agent.read(file)?;
        let rest = text.lines().filter(|line| !line.contains(&v4) && !line.contains(&v6));
        stage.agent.write(file, &rest.flat_map(|line| [line, "\n"]).collect::<String>())?;
    }
    Ok(())
}

/// What the command line says of it.
pub fn ask(stage: &Stage, args: &[&str]) -> Result<()> {
    println!("$ beeline {}\n{}", args.join(" "), stage.agent.ask(args)?);
    Ok(())
}
