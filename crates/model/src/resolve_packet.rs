//! Resolves the first packet of a flow over rows, step by step like bpf/packet.bpf.c. Tests compare the two on random
//! packets. `explain --from ADDRESS` uses this resolver.

use crate::event::{Action, Reason};
use crate::resolve::{Dial, FrontendMatch, Verdict, decide, find};
use crate::row::{FrontendKey, FrontendKind, Rows, Rule, SET_NONE, Scope};
use crate::rules::NoLocalEndpointAction;
use crate::{address::Address, bucket::TokenBuckets};

/// Where a packet comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketOrigin {
    Outside,
    /// The source address or the device is that of a pod.
    Pod,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketAction {
    /// The packet is for no service that this node serves.
    Pass,
    /// The flow goes to a backend.
    Translate,
    /// The client sees a refused connection.
    Reject,
    Drop,
}

#[derive(Clone, Debug, PartialEq)]
pub struct PacketVerdict {
    pub action: PacketAction,
    pub verdict: Verdict,
    /// externalTrafficPolicy Local: the backend sees the client's address.
    pub keeps_source: bool,
}

/// How the packet path treats the source address of packets to ClusterIPs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceRules {
    /// It is known which packets come from pods.
    pub detects_pods: bool,
    pub masquerades_all: bool,
}

/// Resolves a packet. `dial.source` is its source address.
pub fn resolve_packet(rows: &Rows, dial: &Dial, origin: PacketOrigin, buckets: &mut TokenBuckets) -> PacketVerdict {
    let Some((found, keeps_source)) = find_for_packet(rows, dial, origin) else {
        let verdict = Verdict::untouched(Reason::None);
        return PacketVerdict { action: PacketAction::Pass, verdict, keeps_source: false };
    };
    let verdict = decide_packet(rows, dial, found, buckets);
    let action = match (verdict.action, verdict.reason) {
        (Action::Resolved, _) => PacketAction::Translate,
        (_, Reason::NoLocal | Reason::SourceDenied) => PacketAction::Drop,
        (Action::Refused, _) => PacketAction::Reject,
        (Action::Untouched, _) => PacketAction::Pass,
    };
    PacketVerdict { action, verdict, keeps_source }
}

/// The frontend, and whether it has externalTrafficPolicy Local.
fn find_for_packet(rows: &Rows, dial: &Dial, origin: PacketOrigin) -> Option<(FrontendMatch, bool)> {
    let inside = find(rows, dial)?;
    if inside.kind == FrontendKind::NodePort && !rows.nodes.get(&dial.address).is_some_and(|node| node.own) {
        return None;
    }
    if matches!(inside.kind, FrontendKind::ClusterIp | FrontendKind::Virtual) {
        return Some((inside, false));
    }
    let key = FrontendKey { scope: Scope::Outside, ..inside.key };
    Some(match rows.frontends.get(&key) {
        Some(row) if origin == PacketOrigin::Outside => {
            (FrontendMatch { key, set: row.set, kind: row.kind, foreign: false }, true)
        }
        Some(_) => (inside, true),
        None => (inside, false),
    })
}

/// A packet has no cgroup that identifies its pod. A pod that a LocalRedirectPolicy selects is recognised by its address.
fn decide_packet(rows: &Rows, dial: &Dial, found: FrontendMatch, buckets: &mut TokenBuckets) -> Verdict {
    let action = NoLocalEndpointAction::Drop;
    let verdict = decide(rows, dial, found.clone(), action, buckets);
    let deciding = verdict.path.last().and_then(|id| rows.sets.get(*id));
    let Some(set) = deciding.filter(|set| set.rule == Rule::Redirect && verdict.action == Action::Resolved) else {
        return verdict;
    };
    // The kernel asks for the next set only if it picked the client itself.
    let is_client = |id: &u32| rows.backends.get(*id).is_some_and(|row| Some(row.address) == dial.source);
    match verdict.backends.iter().all(is_client) {
        true if set.header.next == SET_NONE => {
            Verdict { action: Action::Refused, reason: Reason::SelfDial, backends: Vec::new(), ..verdict }
        }
        true => decide(rows, dial, FrontendMatch { set: set.header.next, ..found }, action, buckets),
        false => verdict,
    }
}

/// Whether the backend sees the node's address in place of the client's. `is_local`: the backend's address is one of this
/// host, so the packet is not forwarded.
pub fn is_masqueraded(
    packet: &PacketVerdict,
    (source, origin): (Address, PacketOrigin),
    rules: SourceRules,
    (backend, is_local): (Address, bool),
) -> bool {
    let kind = packet.verdict.found.as_ref().map(|found| found.kind);
    let is_internal = matches!(kind, Some(FrontendKind::ClusterIp | FrontendKind::Virtual));
    if backend == source {
        return true;
    }
    let is_exempt = origin == PacketOrigin::Pod || !rules.detects_pods;
    let keeps = if is_internal { is_exempt && !rules.masquerades_all } else { packet.keeps_source };
    !keeps && !is_local
}
