//! The owner's loop: the one thread that touches the state.

use crate::explain::explain;
use crate::health::Health;
use crate::reach::News;
use crate::settings::Listing;
use crate::state::{NOT_RUN, State};
use crate::status::Request;
use crate::{interface, metric, policy, self_test};
use beeline_cluster::Batch;
use beeline_model::fact::{Fact, Refusal};
use beeline_model::{Name, PortName};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::{oneshot, watch};

pub enum Message {
    /// What a cluster's source says.
    Facts(Name, Batch),
    /// What was remembered of a cluster, and when: it serves until the cluster is heard.
    Remembered(Name, Vec<Fact>, SystemTime),
    /// Clusters have come, gone or become others; those named begin anew.
    Listing(Listing, BTreeSet<Name>),
    /// The configuration cannot be used as it is now.
    Misread(Refusal),
    /// How pods are reached.
    Reach(News),
    Ask(Request, oneshot::Sender<serde_json::Value>),
    Metrics(oneshot::Sender<String>),
    Stop,
}

/// The kernel half counts this as a sign of life, released ids become free, failed writes are tried again.
const TICK: Duration = Duration::from_millis(200);
/// Interfaces are looked at this often.
const LOOK: Duration = Duration::from_secs(5);

pub fn own(
    mut state: State,
    inbox: &Receiver<Message>,
    health: &Arc<Health>,
    programmed: &watch::Sender<bool>,
) -> anyhow::Result<()> {
    let (mut next_tick, mut next_look) = (Instant::now() + TICK, Instant::now());
    let mut next_check = Instant::now() + state.settings.sync_period;
    loop {
        match inbox.recv_timeout(next_tick.saturating_duration_since(Instant::now())) {
            Ok(Message::Stop) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
            Ok(message) => serve(&mut state, message, health)?,
            Err(RecvTimeoutError::Timeout) => {}
        }
        if state.self_test == NOT_RUN && state.is_synced() && state.program.is_live() {
            prove(&mut state)?;
        }
        state.reap();
        let now = Instant::now();
        if now >= next_tick {
            state.tick()?;
            state.report();
            next_tick = now + TICK;
        }
        if now >= next_look && !state.settings.fixed_addresses {
            match interface::own_addresses() {
                Ok(addresses) => state.set_own_addresses(addresses)?,
                Err(error) => tracing::warn!("the interfaces cannot be read, their last addresses stay: {error}"),
            }
            next_look = now + LOOK;
        }
        if now >= next_check {
            state.check()?;
            next_check = now + state.settings.sync_period;
        }
        health.set_node_eligible(state.is_node_eligible());
        if state.is_ready() {
            health.programmed(!state.has_pending());
            programmed.send_if_modified(|is| !std::mem::replace(is, true));
        } else {
            health.waits();
        }
    }
}

fn serve(state: &mut State, message: Message, health: &Health) -> anyhow::Result<()> {
    match message {
        Message::Facts(cluster, batch) => state.apply(&cluster, batch)?,
        Message::Remembered(cluster, facts, at) => state.remember(&cluster, facts, at)?,
        Message::Listing(listing, restarted) => state.list(listing, &restarted)?,
        Message::Misread(refusal) => state.note_misread(refusal),
        Message::Reach(news) => state.set_reach(news)?,
        // An asker that has gone does not matter.
        Message::Ask(request, reply) => drop(reply.send(answer(state, &request))),
        Message::Metrics(reply) => drop(reply.send(metric::render(state, health))),
        Message::Stop => {}
    }
    state.tell_names();
    Ok(())
}

/// A dial from below the cgroup must meet our hook, or everything else is pretence.
fn prove(state: &mut State) -> anyhow::Result<()> {
    if !state.settings.self_test {
        state.self_test = "switched off".into();
        return Ok(());
    }
    let cgroup = state.settings.cgroup.clone();
    state.self_test = self_test::run(&cgroup, state)?;
    tracing::info!(hooks = "live", self_test = state.self_test, "serving");
    Ok(())
}

fn answer(state: &mut State, request: &Request) -> serde_json::Value {
    let error = |text: String| serde_json::json!({ "error": text });
    match request {
        Request::Status => serde_json::to_value(state.status()).unwrap_or_else(|e| error(e.to_string())),
        Request::Explain { owner } => {
            let explained = PortName::from_text(owner).and_then(|owner| explain(&state.planner, &owner));
            serde_json::to_value(explained).unwrap_or_else(|e| error(e.to_string()))
        }
        Request::Policies(about) => {
            serde_json::to_value(policy::told(state, about)).unwrap_or_else(|e| error(e.to_string()))
        }
        Request::Run { view } => match state.open_room(view) {
            Ok(cgroup) => serde_json::json!({ "cgroup": cgroup }),
            Err(why) => error(format!("{why:#}")),
        },
        Request::SetEvents { level } => match level.parse() {
            Ok(level) => {
                state.control.set_event_level(level);
                serde_json::json!({ "events": level.to_string() })
            }
            Err(text) => error(text),
        },
        Request::Monitor => error("monitor is a stream".into()),
    }
}
