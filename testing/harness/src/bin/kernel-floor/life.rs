//! The agent's life: attached, watched, an endpoint that goes, killed and back again, cleaned up.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use beeline_harness::{Dial, Errno, Example, Expect, Family, Kind, Trial, mapped};

use crate::{check::Checks, dials::at};

const WEB: &str = "10.96.0.10:80";
const DNS: &str = "10.96.0.53:53";

pub fn attached(example: &Example, checks: &mut Checks) {
    checks.check("loaded and attached; the agent's own dial met the hook", |_| {
        let kernel = example.agent.status()?["kernel"].clone();
        ensure!(kernel["live"] == true && kernel["selfTest"] == "passed", "{kernel}");
        Ok(if kernel["exactUdpReaping"] == true {
            "(cuts UDP sockets off by program)"
        } else {
            "(cuts UDP sockets off by netlink)"
        })
    });
}

/// What people look at: events, and what sockets remember.
pub fn watched(example: &Example, checks: &mut Checks) {
    checks.check("an event is seen", |_| {
        let monitor = ["monitor", "--events", "all", "--service", "default/web", "--count", "1", "-o", "json"];
        let mut monitor = example.agent.command(&monitor)?.spawn()?;
        let end = Instant::now() + Duration::from_secs(30);
        while monitor.stdout().is_empty() && Instant::now() < end {
            example.client.dial(&Dial::new(Kind::Tcp, at(WEB)))?;
        }
        monitor.wait_for("\"resolved\"", Duration::from_secs(5))?;
        Ok("")
    });
    checks.check("an open socket's record is seen", |_| {
        let socket = example.client.tcp(Family::V4)?;
        socket.connect(at(WEB))?;
        let rows = example.agent.ask(&["dump", "nat"])?;
        ensure!(rows.contains("10.96.0.10"), "{rows}");
        Ok("")
    });
}

/// An endpoint goes: sockets that are connected to it are cut off, others are not, and new dials go elsewhere.
pub fn cut_off(example: &mut Example, checks: &mut Checks) {
    checks.check("only the stale UDP sockets are cut off", |checks| {
        let client = &example.client;
        let stale = [at(DNS), at("[fd00:96::53]:53"), mapped(at(DNS))];
        let stale = stale.map(|to| client.connected_to(to, "pod-a").map(|socket| (to, socket)));
        let stale = stale.into_iter().collect::<Result<Vec<_>>>()?;
        let live = client.connected_to(at(DNS), "pod-d")?;
        example.remove("pod-a")?;
        let removed = Instant::now();
        for (to, socket) in stale {
            checks.check(&format!("a stale UDP socket is cut off: {to}"), |_| {
                let cut = socket.poll(false, 10_000)?;
                ensure!(cut == (true, Some(Errno::ECONNABORTED)), "{cut:?}");
                Ok(format!("after {} ms", removed.elapsed().as_millis()))
            });
        }
        live.send("who\n")?;
        ensure!(live.receive()?.1.starts_with(b"pod-d"), "another socket was cut off");
        Ok("")
    });
    example.backends.retain(|backend| backend.name() != "pod-a");
    for (kind, to) in [(Kind::Tcp, WEB), (Kind::UdpConnected, DNS), (Kind::UdpSendTo, DNS)] {
        checks.dial(&example.client, "without pod-a", Trial::new(kind, at(to), Expect::any(example.names())));
    }
}

pub fn restarted(example: &mut Example, checks: &mut Checks) {
    example.agent.kill();
    checks.dial(&example.client, "without an agent", Trial::new(Kind::Tcp, at(WEB), Expect::any(example.names())));
    checks.check("a new agent takes the tables over", |_| {
        example.agent.start(&example.lab)?;
        let kernel = example.agent.status()?["kernel"].clone();
        ensure!(kernel["start"] == "adopted" && kernel["live"] == true, "{kernel}");
        Ok("")
    });
    checks.dial(&example.client, "after a restart", Trial::new(Kind::Tcp, at(WEB), Expect::any(example.names())));
}

pub fn cleaned(example: &mut Example, checks: &mut Checks) {
    checks.check("cleanup leaves nothing", |_| {
        example.agent.stop()?;
        example.agent.ask(&["cleanup"])?;
        ensure!(example.agent.is_gone(), "pins are left");
        Ok("")
    });
}
