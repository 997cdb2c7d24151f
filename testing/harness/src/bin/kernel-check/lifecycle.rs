//! Checks of the agent's life cycle: attach, events, a removed endpoint, restart, cleanup.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use beeline_harness::{DialCheck, DialKind, DialRequest, Errno, ExampleCluster, Expected, SocketFamily, mapped};

use crate::{check::Checks, dials::at};

const WEB: &str = "10.96.0.10:80";
const DNS: &str = "10.96.0.53:53";

pub fn attached(example: &ExampleCluster, checks: &mut Checks) {
    checks.check("loaded and attached; the agent's own connect() triggered the BPF program", |_| {
        let kernel = example.agent.status()?["kernel"].clone();
        ensure!(kernel["live"] == true && kernel["selfTest"] == "passed", "{kernel}");
        Ok(if kernel["exactUdpReaping"] == true {
            "(closes UDP sockets by BPF program)"
        } else {
            "(closes UDP sockets by netlink)"
        })
    });
}

/// Checks that events and socket records are visible.
pub fn visible(example: &ExampleCluster, checks: &mut Checks) {
    checks.check("monitor prints an event", |_| {
        let monitor = ["monitor", "--events", "all", "--service", "default/web", "--count", "1", "-o", "json"];
        let mut monitor = example.agent.command(&monitor)?.spawn()?;
        let end = Instant::now() + Duration::from_secs(30);
        while monitor.stdout().is_empty() && Instant::now() < end {
            example.client.dial(&DialRequest::new(DialKind::Tcp, at(WEB)))?;
        }
        monitor.wait_for("\"resolved\"", Duration::from_secs(5))?;
        Ok("")
    });
    checks.check("dump nat lists an open socket", |_| {
        let socket = example.client.tcp(SocketFamily::V4)?;
        socket.connect(at(WEB))?;
        let rows = example.agent.run(&["dump", "nat"])?;
        ensure!(rows.contains("10.96.0.10"), "{rows}");
        Ok("")
    });
}

/// Removes an endpoint: only the UDP sockets connected to it are closed, and new dials reach other endpoints.
pub fn endpoint_removed(example: &mut ExampleCluster, checks: &mut Checks) {
    checks.check("only the stale UDP sockets are closed", |checks| {
        let client = &example.client;
        let stale = [at(DNS), at("[fd00:96::53]:53"), mapped(at(DNS))];
        let stale = stale.map(|to| client.connect_udp_to(to, "pod-a").map(|socket| (to, socket)));
        let stale = stale.into_iter().collect::<Result<Vec<_>>>()?;
        let live = client.connect_udp_to(at(DNS), "pod-d")?;
        example.remove_endpoints("pod-a")?;
        let removed = Instant::now();
        for (to, socket) in stale {
            checks.check(&format!("a stale UDP socket is closed: {to}"), |_| {
                let closed = socket.poll(false, 10_000)?;
                ensure!(closed == (true, Some(Errno::ECONNABORTED)), "{closed:?}");
                Ok(format!("after {} ms", removed.elapsed().as_millis()))
            });
        }
        live.send("who\n")?;
        ensure!(live.receive()?.1.starts_with(b"pod-d"), "a socket to a live endpoint was closed");
        Ok("")
    });
    example.backends.retain(|backend| backend.name() != "pod-a");
    for (kind, to) in [(DialKind::Tcp, WEB), (DialKind::UdpConnected, DNS), (DialKind::UdpSendTo, DNS)] {
        checks.dial(&example.client, "without pod-a", DialCheck::new(kind, at(to), Expected::any(example.names())));
    }
}

pub fn restarted(example: &mut ExampleCluster, checks: &mut Checks) {
    example.agent.kill();
    checks.dial(
        &example.client,
        "without an agent",
        DialCheck::new(DialKind::Tcp, at(WEB), Expected::any(example.names())),
    );
    checks.check("a new agent adopts the maps", |_| {
        example.agent.start(&example.network)?;
        let kernel = example.agent.status()?["kernel"].clone();
        ensure!(kernel["start"] == "adopted" && kernel["live"] == true, "{kernel}");
        Ok("")
    });
    checks.dial(
        &example.client,
        "after a restart",
        DialCheck::new(DialKind::Tcp, at(WEB), Expected::any(example.names())),
    );
}

pub fn cleaned(example: &mut ExampleCluster, checks: &mut Checks) {
    checks.check("cleanup removes all pins", |_| {
        example.agent.stop()?;
        example.agent.run(&["cleanup"])?;
        ensure!(example.agent.is_removed(), "pins are left behind");
        Ok("")
    });
}
