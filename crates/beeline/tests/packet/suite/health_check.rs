//! The health check of a Service with the policy Local (`healthCheckNodePort`).

use super::fixture::{PacketFixture, TIMEOUT};
use super::service::{PacketService, TrafficPolicy};
use beeline_harness::wait_until;
use serde_json::json;
use std::io::{Read, Write};
use std::net::TcpStream;

/// Only ready endpoints of this node count, although a terminating one still serves.
pub fn ready_endpoints_only(fixture: &mut PacketFixture<'_>) {
    let (a, c) = (fixture.pod(0), fixture.pod(2));
    let service = |name, number: u8| {
        let spec = json!({ "healthCheckNodePort": 32_000 + u16::from(number) });
        PacketService::new(name, number, TrafficPolicy::Local).with_spec(spec)
    };
    let services = [
        (service("health-ready", 80).with(a, "node-1"), 200),
        (service("health-terminating", 81).with_terminating(a, "node-1"), 503),
        (service("health-elsewhere", 82).with(c, "node-2"), 503),
    ];
    fixture.apply_all(&services.clone().map(|(service, _)| service));
    for (service, code) in &services {
        let port = 32_000 + u16::from(service.number);
        let what = format!("{} responds with {code}", service.name);
        wait_until(&what, TIMEOUT, || status_code(fixture, port).is_ok_and(|found| found == *code));
    }
}

fn status_code(fixture: &PacketFixture<'_>, port: u16) -> std::io::Result<u16> {
    let node = fixture.network.cluster.node();
    fixture
        .network
        .client
        .run_in(|| -> std::io::Result<u16> {
            let mut stream = TcpStream::connect((node.v4, port))?;
            stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
            let mut text = String::new();
            stream.read_to_string(&mut text)?;
            let code = text.split_whitespace().nth(1).and_then(|code| code.parse().ok());
            code.ok_or_else(|| std::io::Error::other(format!("no status line: {text}")))
        })
        .map_err(std::io::Error::other)?
}
