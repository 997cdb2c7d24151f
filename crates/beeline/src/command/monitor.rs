//! `beeline monitor` and `beeline events`: the agent's stream of events, and the level that decides which dials it reports.

use super::usage;
use crate::args::{EventsArgs, MonitorArgs, OutputFormat, VerdictFilter};
use crate::print::{self, or_dash};
use anyhow::{Context, anyhow};
use beeline_api::{AgentClient, AttributedEvent, EventFilter, MonitorLine};
use beeline_datapath::control::EventLevel;
use beeline_model::event::Action;
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;

pub fn set_level(args: &EventsArgs) -> anyhow::Result<ExitCode> {
    check_level(&args.level)?;
    let level = AgentClient::new(&args.paths.socket).set_event_level(&args.level)?;
    print::out(format_args!("events: {level}"));
    Ok(ExitCode::SUCCESS)
}

fn check_level(level: &str) -> anyhow::Result<()> {
    level.parse::<EventLevel>().map(drop).map_err(|error| usage(anyhow!(error)))
}

pub fn run(args: &MonitorArgs) -> anyhow::Result<ExitCode> {
    args.events.as_deref().map(check_level).transpose()?;
    let filter = EventFilter {
        service: args.service.clone(),
        cgroup: args.cgroup.as_deref().map(cgroup_id).transpose()?,
        verdict: args.verdict.map(|verdict| match verdict {
            VerdictFilter::Resolved => Action::Resolved,
            VerdictFilter::Refused => Action::Refused,
            VerdictFilter::Untouched => Action::Untouched,
        }),
    };
    // The agent restores the event level when this process closes the stream, however it ends.
    let stream = AgentClient::new(&args.query.paths.socket).monitor(filter, args.events.clone())?;
    let mut left = args.count.unwrap_or(usize::MAX);
    for line in stream {
        let line = line?;
        let text = match args.query.output {
            OutputFormat::Table => print::escape(&line_text(&line)).into_owned(),
            _ => print::escape_json(&serde_json::to_string(&line)?),
        };
        if writeln!(std::io::stdout(), "{text}").is_err() {
            break;
        }
        left -= usize::from(matches!(line, MonitorLine::Event(_)));
        if left == 0 {
            break;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn cgroup_id(text: &str) -> anyhow::Result<u64> {
    match text.parse() {
        Ok(id) => Ok(id),
        Err(_) => beeline_datapath::cgroup::id(Path::new(text)).with_context(|| format!("--cgroup {text}")),
    }
}

fn line_text(line: &MonitorLine) -> String {
    match line {
        MonitorLine::Lost { lost } => format!("... {lost} events were dropped: this monitor reads too slowly"),
        MonitorLine::Error { error } => error.clone(),
        MonitorLine::Event(event) => event_text(event),
    }
}

/// The process and pod that dialled, or the source of a packet.
fn client_text(AttributedEvent { event, names }: &AttributedEvent) -> String {
    let process = format!("{}[{}]", event.process, event.pid);
    match (event.source, &names.namespace, &names.pod) {
        (Some((address, port)), ..) => format!("packet from {}", SocketAddr::new(address.ip(), port)),
        (None, Some(namespace), Some(pod)) => {
            let container = names.container.as_ref().map_or_else(String::new, |container| format!("/{container}"));
            format!("{process} {namespace}/{pod}{container}")
        }
        _ => format!("{process} cgroup {}", event.cgroup),
    }
}

/// `TIME PROCESS[PID] CLIENT: ADDRESS:PORT/PROTOCOL KIND SERVICE -> VERDICT BACKEND`; the destination is one that `explain`
/// takes.
fn event_text(attributed: &AttributedEvent) -> String {
    let AttributedEvent { event, names } = attributed;
    let time = jiff::Timestamp::from_nanosecond(i128::from(event.time)).unwrap_or_default();
    let dialled = SocketAddr::new(event.dialled.ip(), event.dialled_port);
    let backend = match event.chosen {
        Some((address, port)) => {
            let pod = names.backend_pod.as_ref().map_or_else(String::new, |pod| format!(" ({pod})"));
            format!("{}{pod}", SocketAddr::new(address.ip(), port))
        }
        None => word(&event.reason),
    };
    let affinity = if event.affinity { " (affinity)" } else { "" };
    let limit = names
        .limited_by
        .as_ref()
        .map_or_else(String::new, |policy| format!(" (over the connection limit of {policy})"));
    format!(
        "{time:.3} {}: {dialled}/{} {} {} -> {} {backend}{affinity}{limit}",
        client_text(attributed),
        or_dash(event.protocol),
        event.kind.map_or_else(|| "-".to_owned(), |kind| word(&kind)),
        or_dash(names.service.as_ref()),
        word(&event.action),
    )
}

/// The word that the JSON output has for a value of an enum.
fn word(value: &impl serde::Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_else(|| "-".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use beeline_api::EventNames;
    use beeline_model::event::{Event, Hook, Reason};
    use beeline_model::row::{FrontendKind, Rule};
    use beeline_model::{Address, Protocol};

    fn event(dialled: &str, chosen: Option<(&str, u16)>) -> AttributedEvent {
        let address = |text: &str| Address::from(text.parse::<std::net::IpAddr>().unwrap());
        let event = Event {
            time: 1_700_000_000_123_456_789,
            cgroup: 42,
            netns: 1,
            pid: 7,
            process: "curl".into(),
            owner: 3,
            hook: Hook::Connect,
            protocol: Some(Protocol::Tcp),
            dialled: address(dialled),
            dialled_port: 80,
            chosen: chosen.map(|(text, port)| (address(text), port)),
            kind: Some(FrontendKind::ClusterIp),
            rule: Some(Rule::Service),
            action: if chosen.is_some() { Action::Resolved } else { Action::Refused },
            reason: if chosen.is_some() { Reason::None } else { Reason::NoEndpoint },
            affinity: false,
            limited: 0,
            view: 0,
            source: None,
        };
        let names = EventNames { service: Some("default/web:http/TCP".into()), ..EventNames::default() };
        AttributedEvent { event, names }
    }

    #[test]
    fn an_event_line_has_milliseconds_and_addresses_that_explain_takes() {
        let mut resolved = event("10.96.0.10", Some(("10.244.1.2", 8080)));
        resolved.names.namespace = Some("default".into());
        resolved.names.pod = Some("client".into());
        resolved.names.backend_pod = Some("default/web-1".into());
        assert_eq!(
            event_text(&resolved),
            "2023-11-14T22:13:20.123Z curl[7] default/client: 10.96.0.10:80/TCP clusterIP default/web:http/TCP -> resolved \
             10.244.1.2:8080 (default/web-1)"
        );
        assert_eq!(
            event_text(&event("fd00:96::10", None)),
            "2023-11-14T22:13:20.123Z curl[7] cgroup 42: [fd00:96::10]:80/TCP clusterIP default/web:http/TCP -> refused \
             noEndpoint"
        );
    }

    #[test]
    fn a_packet_is_shown_with_its_source() {
        let mut packet = event("192.0.2.1", Some(("10.244.1.2", 8080)));
        packet.event.source = Some(("198.51.100.7".parse::<std::net::IpAddr>().unwrap().into(), 40000));
        assert_eq!(
            event_text(&packet),
            "2023-11-14T22:13:20.123Z packet from 198.51.100.7:40000: 192.0.2.1:80/TCP clusterIP default/web:http/TCP -> \
             resolved 10.244.1.2:8080"
        );
    }
}
