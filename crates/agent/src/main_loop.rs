//! The main loop: the only thread that uses the agent's state. Other tasks send it messages.

use crate::agent::{Agent, SELF_TEST_NOT_RUN};
use crate::attribution::Attribution;
use crate::event_level::EventLevelState;
use crate::health::Health;
use crate::metric;
use crate::reach::ReachUpdate;
use crate::reconciler::Reconciler;
use crate::settings::ClusterList;
use crate::{interface, request, self_test};
use beeline_api::{AttributedEvent, Request, Response};
use beeline_cluster::ChangeBatch;
use beeline_datapath::pod::KubeletRoot;
use beeline_metrics::MetricsFormat;
use beeline_model::Name;
use beeline_model::event::Event;
use beeline_model::object::Object;
use beeline_model::refusal::Refusal;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::{oneshot, watch};

pub enum Message {
    /// Changes of a cluster.
    Batch(Name, ChangeBatch),
    /// The source of a cluster starts again and will list everything.
    SourceRestarted(Name),
    /// A snapshot of a cluster that does not answer, and when it was taken.
    Snapshot(Name, Vec<Object>, SystemTime),
    /// A new cluster list. The sources of the named clusters are new ones.
    Reconfigured(ClusterList, BTreeSet<Name>),
    /// The configuration file changed and cannot be used.
    ConfigurationRefused(Refusal),
    /// Results of the reach task.
    Reach(ReachUpdate),
    Request(Request, oneshot::Sender<Response>),
    /// The event level or the number of monitors changed.
    EventLevel(EventLevelState, oneshot::Sender<()>),
    /// Events to add names to, with a scan of the cgroups if one was needed.
    Attribute {
        events: Vec<Event>,
        scan: Option<Vec<KubeletRoot>>,
        reply: oneshot::Sender<Vec<AttributedEvent>>,
    },
    Metrics(MetricsFormat, oneshot::Sender<String>),
    Stop,
}

const TICK: Duration = Duration::from_millis(200);
/// How often the host's addresses are read from its interfaces.
const INTERFACE_INTERVAL: Duration = Duration::from_secs(5);

pub fn run(
    mut agent: Agent,
    inbox: &Receiver<Message>,
    health: &Arc<Health>,
    programmed: &watch::Sender<bool>,
) -> anyhow::Result<()> {
    let (mut next_tick, mut next_interfaces) = (Instant::now() + TICK, Instant::now());
    let mut next_check = Instant::now() + agent.settings.sync_period;
    loop {
        let wake = agent.udp_deadline().map_or(next_tick, |deadline| deadline.min(next_tick));
        match inbox.recv_timeout(wake.saturating_duration_since(Instant::now())) {
            Ok(Message::Stop) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
            Ok(message) => handle(&mut agent, message, health)?,
            Err(RecvTimeoutError::Timeout) => {}
        }
        if agent.self_test == SELF_TEST_NOT_RUN && agent.is_synced() && agent.reconciler.program.is_attached() {
            run_self_test(&mut agent)?;
            // Sockets may have been closed while no agent kept the hooks attached.
            agent.collect_shares();
        }
        agent.reap_udp();
        let now = Instant::now();
        if now >= next_tick {
            agent.tick()?;
            agent.publish_report();
            next_tick = now + TICK;
        }
        if now >= next_interfaces && !agent.settings.fixed_addresses {
            match interface::own_addresses() {
                Ok(addresses) => agent.set_own_addresses(addresses)?,
                Err(error) => tracing::warn!(%error, "cannot read the interfaces; the last addresses stay in effect"),
            }
            next_interfaces = now + INTERFACE_INTERVAL;
        }
        if now >= next_check {
            agent.check_kernel()?;
            next_check = now + agent.settings.sync_period;
        }
        health.set_node_eligible(agent.is_node_eligible());
        if agent.is_ready() {
            health.record_programmed(!agent.reconciler.retries.has_retryable());
            programmed.send_if_modified(|programmed| !std::mem::replace(programmed, true));
        } else {
            health.record_waiting();
        }
    }
}

/// Handles one message. Sending a reply fails if the requester has disconnected, which is ignored.
fn handle(agent: &mut Agent, message: Message, health: &Health) -> anyhow::Result<()> {
    match message {
        Message::Batch(cluster, batch) => agent.apply_batch(&cluster, batch)?,
        Message::SourceRestarted(cluster) => agent.restart_source(&cluster),
        Message::Snapshot(cluster, objects, taken_at) => agent.apply_snapshot(&cluster, objects, taken_at)?,
        Message::Reconfigured(list, restarted) => agent.set_cluster_list(list, &restarted)?,
        Message::ConfigurationRefused(refusal) => agent.sources.refuse_configuration(refusal),
        Message::Reach(update) => agent.apply_reach(update)?,
        Message::Request(request, reply) => drop(reply.send(request::respond(agent, &request))),
        Message::EventLevel(state, reply) => {
            agent.set_event_level(state);
            let _ = reply.send(());
        }
        Message::Attribute { events, scan, reply } => {
            scan.into_iter().for_each(|roots| agent.pod_cgroups.set_scan(roots, Instant::now()));
            drop(reply.send(attribute(agent, events)));
        }
        Message::Metrics(format, reply) => drop(reply.send(metric::render(agent, health, format))),
        Message::Stop => {}
    }
    agent.publish_names();
    Ok(())
}

fn attribute(agent: &Agent, events: Vec<Event>) -> Vec<AttributedEvent> {
    let Reconciler { tables, planner, .. } = &agent.reconciler;
    let attribution = Attribution { tables, planner, pod_cgroups: &agent.pod_cgroups };
    events.into_iter().map(|event| attribution.attribute(event)).collect()
}

/// Runs the self-test, unless it is switched off. The agent ends with an error if its programs do not answer the dial.
fn run_self_test(agent: &mut Agent) -> anyhow::Result<()> {
    if !agent.settings.kernel.self_test {
        agent.self_test = "switched off".into();
        return Ok(());
    }
    let cgroup = agent.settings.kernel.cgroup.clone();
    agent.self_test = self_test::run(&cgroup, &mut agent.reconciler)?;
    tracing::info!(hooks = "attached", self_test = agent.self_test, "serving");
    Ok(())
}
