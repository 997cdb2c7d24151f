//! Resolves a dial over rows, step by step like bpf/resolve.h. Tests compare the two on random tables. `explain` and
//! `plan` use this resolver, so they show what a dial really gets.
//!
//! The BPF programs pick a backend at random; this resolver lists all backends that they may pick.

use crate::address::Address;
use crate::bucket::TokenBuckets;
use crate::event::{Action, Reason};
use crate::name::Protocol;
use crate::range;
use crate::row::*;
use crate::rules::NoLocalEndpointAction;
use std::collections::BTreeSet;

/// Maximum number of sets in a chain.
pub const MAX_CHAIN: usize = 3;

#[derive(Clone, Debug)]
pub struct Dial {
    pub address: Address,
    pub port: u16,
    pub protocol: Protocol,
    pub view: u32,
    /// The source address of the client's packets, if known.
    pub source: Option<Address>,
    /// The client is in the host's network namespace.
    pub host: bool,
    /// The backend, with its generation, that the socket (unconnected UDP) or the client (affinity) used before.
    pub prefer: Option<(BackendId, u32)>,
    /// The ids of the client's cgroup and of all its ancestors.
    pub cgroups: Vec<u64>,
    /// The time in nanoseconds, for the token buckets.
    pub now: u64,
    /// The backends that redirects skip now, because they refuse connections.
    pub suspended: BTreeSet<(Address, u16)>,
}

impl Dial {
    pub fn to(address: Address, port: u16, protocol: Protocol) -> Dial {
        Dial {
            address,
            port,
            protocol,
            view: 0,
            source: None,
            host: false,
            prefer: None,
            cgroups: Vec::new(),
            now: 0,
            suspended: BTreeSet::new(),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct FrontendMatch {
    pub key: FrontendKey,
    pub set: SetId,
    pub kind: FrontendKind,
    /// The dialled address is the address of another node (NodePorts only).
    pub foreign: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    pub action: Action,
    pub reason: Reason,
    pub found: Option<FrontendMatch>,
    /// The sets that were consulted, in order. The last one decided.
    pub path: Vec<SetId>,
    /// The backends that may be picked. Exactly one if a recorded backend is kept.
    pub backends: Vec<BackendId>,
    pub kept: bool,
    /// The last set whose limit the dial exceeded.
    pub limited: Option<SetId>,
}

impl Verdict {
    pub(crate) fn untouched(reason: Reason) -> Verdict {
        let (path, backends) = (Vec::new(), Vec::new());
        Verdict { action: Action::Untouched, reason, found: None, path, backends, kept: false, limited: None }
    }
}

/// Resolves a dial with all token buckets full.
pub fn resolve(rows: &Rows, dial: &Dial, no_local_endpoint_action: NoLocalEndpointAction) -> Verdict {
    resolve_with(rows, dial, no_local_endpoint_action, &mut TokenBuckets::default())
}

/// Resolves a dial with the given token buckets, and takes a token from the bucket that applies.
pub fn resolve_with(
    rows: &Rows,
    dial: &Dial,
    no_local_endpoint_action: NoLocalEndpointAction,
    buckets: &mut TokenBuckets,
) -> Verdict {
    match find(rows, dial) {
        Some(found) => decide(rows, dial, found, no_local_endpoint_action, buckets),
        None => Verdict::untouched(Reason::None),
    }
}

/// As destinations, 0.0.0.0 and :: mean loopback.
fn any_to_loopback(address: Address) -> Address {
    if address.is_any() { Address::loopback(address.family()) } else { address }
}

pub(crate) fn find(rows: &Rows, dial: &Dial) -> Option<FrontendMatch> {
    if !dial.protocol.has_hook() {
        return None;
    }
    let bits = rows.ports.get(&(dial.protocol, dial.port)).copied().unwrap_or_default();
    let words = if dial.address.family() == crate::Family::V4 { &rows.ranges_v4 } else { &rows.ranges_v6 };
    let in_range = words.iter().any(|w| range::contains(*w, dial.address));
    let address = any_to_loopback(dial.address);
    let key = |address, port, protocol, view| FrontendKey { address, port, protocol, scope: Scope::Inside, view };
    let lookup = |key: FrontendKey, foreign| {
        rows.frontends.get(&key).map(|row| FrontendMatch { key, set: row.set, kind: row.kind, foreign })
    };
    let exact = || lookup(key(address, dial.port, Some(dial.protocol), dial.view), false).filter(|_| bits.frontend);
    let all_ports = || lookup(key(address, 0, None, dial.view), false).filter(|_| in_range);
    let node_port = || {
        let at = node_address(address);
        let node = rows.nodes.get(&at).filter(|n| bits.node_port && (!n.loopback || dial.host))?;
        if node.exact_loopback && at != address {
            return None;
        }
        let any = Address::any(address.family());
        lookup(key(any, dial.port, Some(dial.protocol), u32::from(node.cluster)), !node.own)
    };
    exact().or_else(all_ports).or_else(node_port)
}

/// All of 127.0.0.0/8 shares the row of 127.0.0.1. That row may be limited to 127.0.0.1 itself.
fn node_address(address: Address) -> Address {
    match address.ip() {
        std::net::IpAddr::V4(ip) if ip.is_loopback() => Address::from(std::net::IpAddr::from([127, 0, 0, 1])),
        _ => address,
    }
}

fn fail(no_local_endpoint_action: NoLocalEndpointAction, reason: Reason) -> (Action, Reason) {
    match no_local_endpoint_action {
        NoLocalEndpointAction::Refuse => (Action::Refused, reason),
        NoLocalEndpointAction::Drop => (Action::Untouched, reason),
    }
}

pub(crate) fn decide(
    rows: &Rows,
    dial: &Dial,
    found: FrontendMatch,
    no_local_endpoint_action: NoLocalEndpointAction,
    buckets: &mut TokenBuckets,
) -> Verdict {
    let mut verdict = Verdict::untouched(Reason::None);
    let mut id = found.set;
    let foreign = found.foreign;
    verdict.found = Some(found);
    if id == SET_CLOSED {
        verdict.path.push(id);
        (verdict.action, verdict.reason) = (Action::Refused, Reason::NoPort);
        return verdict;
    }
    if let Some(prefer) = dial.prefer
        && keep_recorded(rows, dial, prefer, id, &mut verdict)
    {
        return verdict;
    }
    for _ in 0..MAX_CHAIN {
        let Some(set) = rows.sets.get(id) else { return verdict };
        verdict.path.push(id);
        if let Some(outcome) = check_access(rows, dial, set, foreign, no_local_endpoint_action) {
            (verdict.action, verdict.reason) = outcome;
            return verdict;
        }
        let selected = set.header.self_next && is_selected(rows, dial, set.header.policy);
        if !selected && pick_from(rows, dial, (id, set), buckets, &mut verdict) {
            return verdict;
        }
        if set.header.next == SET_NONE {
            let limited = verdict.limited.and_then(|id| rows.sets.get(id)).is_some_and(|s| s.owner == set.owner);
            (verdict.action, verdict.reason) = match (selected, limited) {
                (true, _) => (Action::Refused, Reason::SelfDial),
                (_, true) => (Action::Refused, Reason::Limited),
                _ => verdict_if_empty(set, no_local_endpoint_action),
            };
            return verdict;
        }
        id = set.header.next;
    }
    verdict
}

/// Keeps the recorded backend while some set of the chain contains it. A set that restricts its clients is checked in
/// turn instead. A selected pod keeps no backend of the policy that selects it.
fn keep_recorded(
    rows: &Rows,
    dial: &Dial,
    (backend, generation): (BackendId, u32),
    mut id: SetId,
    verdict: &mut Verdict,
) -> bool {
    let mut path = Vec::new();
    for _ in 0..MAX_CHAIN {
        let restricted = |set: &&SetRow| set.header.own_node || set.header.restricted;
        let Some(set) = rows.sets.get(id).filter(|set| !restricted(set)) else { return false };
        path.push(id);
        let selected = || set.header.self_next && is_selected(rows, dial, set.header.policy);
        if set.span.count > 0 && is_member(rows, backend, Some(generation), set) && !selected() {
            (verdict.action, verdict.kept, verdict.backends, verdict.path) =
                (Action::Resolved, true, vec![backend], path);
            return true;
        }
        id = set.header.next;
    }
    false
}

/// Picks from one set. Keeping a recorded backend costs no token; a new pick costs one. An empty set takes no token.
fn pick_from(
    rows: &Rows,
    dial: &Dial,
    (id, set): (SetId, &SetRow),
    buckets: &mut TokenBuckets,
    verdict: &mut Verdict,
) -> bool {
    let members = live_members(rows, set);
    if members.is_empty() {
        return false;
    }
    let kept = dial.prefer.filter(|(b, generation)| is_member(rows, *b, Some(*generation), set));
    let limit = rows.buckets.get(&set.header.policy).filter(|_| set.header.limited && kept.is_none());
    if limit.is_some_and(|limit| !buckets.take_token(set.header.policy, *limit, dial.now)) {
        verdict.limited = Some(id);
        return false;
    }
    let left: Vec<BackendId> = members.into_iter().filter(|backend| !is_skipped(rows, dial, set, *backend)).collect();
    if left.is_empty() && kept.is_none() {
        return false;
    }
    verdict.action = Action::Resolved;
    verdict.kept = kept.is_some();
    verdict.backends = kept.map_or(left, |(b, _)| vec![b]);
    true
}

/// Whether the dial skips a backend that refuses connections. Only TCP dials of a redirect do, and only if there is a next
/// set. If many backends of a set are suspended, the BPF programs may use the next set although one of them is not.
fn is_skipped(rows: &Rows, dial: &Dial, set: &SetRow, backend: BackendId) -> bool {
    let may_skip = set.rule == Rule::Redirect && dial.protocol == Protocol::Tcp && set.header.next != SET_NONE;
    may_skip && rows.backends.get(backend).is_some_and(|row| dial.suspended.contains(&(row.address, row.port)))
}

fn is_selected(rows: &Rows, dial: &Dial, policy: PolicyId) -> bool {
    dial.cgroups.iter().any(|cgroup| rows.selected.contains(&(policy, *cgroup)))
}

pub(crate) fn verdict_if_empty(set: &SetRow, no_local_endpoint_action: NoLocalEndpointAction) -> (Action, Reason) {
    match set.header.when_empty {
        WhenEmpty::Refuse => (Action::Refused, Reason::NoEndpoint),
        WhenEmpty::Fail => fail(no_local_endpoint_action, Reason::NoLocal),
    }
}

/// Checks whether the set may serve this dial at all, before a backend is picked.
fn check_access(
    rows: &Rows,
    dial: &Dial,
    set: &SetRow,
    foreign: bool,
    no_local_endpoint_action: NoLocalEndpointAction,
) -> Option<(Action, Reason)> {
    if set.header.own_node && foreign {
        return Some(verdict_if_empty(set, no_local_endpoint_action));
    }
    if !set.header.restricted {
        return None;
    }
    let Some(source) = dial.source else { return Some((Action::Untouched, Reason::SourceUnknown)) };
    let allowed = rows.sources.iter().any(|(owner, net)| *owner == set.owner && net.contains(&source.ip()));
    (!allowed).then(|| fail(no_local_endpoint_action, Reason::SourceDenied))
}

fn live_members(rows: &Rows, set: &SetRow) -> Vec<BackendId> {
    let mut members: Vec<BackendId> =
        rows.members(set).iter().copied().filter(|b| is_member(rows, *b, None, set)).collect();
    members.sort_unstable();
    members.dedup();
    members
}

fn is_member(rows: &Rows, backend: BackendId, generation: Option<u32>, set: &SetRow) -> bool {
    rows.backends.get(backend).is_some_and(|b| {
        b.owner == set.owner
            && b.state.roles & set.role as u8 != 0
            && (set.role != Role::Node || b.node == set.node)
            && generation.is_none_or(|g| g == b.state.generation)
    })
}
