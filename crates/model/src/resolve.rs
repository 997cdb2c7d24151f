//! The decision over rows, as the kernel half makes it: the twin of bpf/resolve.h, step by step. Tests compare the two
//! on random tables; `explain` and `plan` use it, so what they say is what a dial gets.
//!
//! The kernel picks by a random number; here all that it could pick is listed.

use crate::address::Address;
use crate::bucket::Buckets;
use crate::event::{Action, Reason};
use crate::name::Protocol;
use crate::range;
use crate::row::*;
use crate::rules::EmptyLocal;

/// A dial comes to so many sets at most.
pub const LINKS: usize = 3;

#[derive(Clone, Debug)]
pub struct Dial {
    pub address: Address,
    pub port: u16,
    pub protocol: Protocol,
    pub view: u32,
    /// What the dialler's packets would come from, if known.
    pub source: Option<Address>,
    /// In the host's own network namespace.
    pub host: bool,
    /// The backend that the socket (unconnected UDP) or the client (affinity) used before.
    pub prefer: Option<(BackendId, u32)>,
    /// Cgroups above the dialler, its own included.
    pub cgroups: Vec<u64>,
    /// Nanoseconds of the clock that buckets fill by.
    pub now: u64,
}

impl Dial {
    pub fn to(address: Address, port: u16, protocol: Protocol) -> Dial {
        Dial { address, port, protocol, view: 0, source: None, host: false, prefer: None, cgroups: Vec::new(), now: 0 }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    pub key: FrontendKey,
    pub set: SetId,
    pub kind: Kind,
    /// A NodePort at another node's address.
    pub foreign: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    pub action: Action,
    pub reason: Reason,
    pub found: Option<Found>,
    /// The sets that were asked, in order; the last one decided.
    pub path: Vec<SetId>,
    /// What the kernel may pick; one only where it must keep it.
    pub backends: Vec<BackendId>,
    pub kept: bool,
    /// The last set whose limit sent the dial further down, or off.
    pub limited: Option<SetId>,
}

impl Verdict {
    fn untouched(reason: Reason) -> Verdict {
        let (path, backends) = (Vec::new(), Vec::new());
        Verdict { action: Action::Untouched, reason, found: None, path, backends, kept: false, limited: None }
    }
}

/// What a dial gets that finds every bucket full.
pub fn resolve(rows: &Rows, dial: &Dial, empty_local: EmptyLocal) -> Verdict {
    resolve_with(rows, dial, empty_local, &mut Buckets::default())
}

/// What it gets of these buckets, and takes from them.
pub fn resolve_with(rows: &Rows, dial: &Dial, empty_local: EmptyLocal, buckets: &mut Buckets) -> Verdict {
    match find(rows, dial) {
        Some(found) => decide(rows, dial, found, empty_local, buckets),
        None => Verdict::untouched(Reason::None),
    }
}

/// 0.0.0.0 and :: as a destination mean loopback.
fn settle_any(address: Address) -> Address {
    if address.is_any() { Address::loopback(address.family()) } else { address }
}

fn find(rows: &Rows, dial: &Dial) -> Option<Found> {
    if !dial.protocol.has_hook() {
        return None;
    }
    let bits = rows.ports.get(&(dial.protocol, dial.port)).copied().unwrap_or_default();
    let words = if dial.address.family() == crate::Family::V4 { &rows.ranges_v4 } else { &rows.ranges_v6 };
    let ranged = words.iter().any(|w| range::contains(*w, dial.address));
    let address = settle_any(dial.address);
    let key = |address, port, protocol, view| FrontendKey { address, port, protocol, scope: Scope::Inside, view };
    let look = |key: FrontendKey, foreign| {
        rows.frontends.get(&key).map(|row| Found { key, set: row.set, kind: row.kind, foreign })
    };
    let exact = || look(key(address, dial.port, Some(dial.protocol), dial.view), false).filter(|_| bits.frontend);
    let known = || look(key(address, 0, None, dial.view), false).filter(|_| ranged);
    let node_port = || {
        let at = node_address(address);
        let node = rows.nodes.get(&at).filter(|n| bits.node_port && (!n.loopback || dial.host))?;
        if node.alone && at != address {
            return None;
        }
        let any = Address::any(address.family());
        look(key(any, dial.port, Some(dial.protocol), u32::from(node.cluster)), !node.own)
    };
    exact().or_else(known).or_else(node_port)
}

/// All of 127.0.0.0/8 is one row, which may stand for 127.0.0.1 alone.
fn node_address(address: Address) -> Address {
    match address.ip() {
        std::net::IpAddr::V4(ip) if ip.is_loopback() => Address::from(std::net::IpAddr::from([127, 0, 0, 1])),
        _ => address,
    }
}

fn fail(empty_local: EmptyLocal, reason: Reason) -> (Action, Reason) {
    match empty_local {
        EmptyLocal::Refuse => (Action::Refused, reason),
        EmptyLocal::Drop => (Action::Untouched, reason),
    }
}

fn decide(rows: &Rows, dial: &Dial, found: Found, empty_local: EmptyLocal, buckets: &mut Buckets) -> Verdict {
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
        && keep(rows, dial, prefer, id, &mut verdict)
    {
        return verdict;
    }
    for _ in 0..LINKS {
        let Some(set) = rows.sets.get(id) else { return verdict };
        verdict.path.push(id);
        if let Some(outcome) = bar(rows, dial, set, foreign, empty_local) {
            (verdict.action, verdict.reason) = outcome;
            return verdict;
        }
        let selected = set.header.self_next && is_selected(rows, dial, set.header.policy);
        if !selected && take_from(rows, dial, (id, set), buckets, &mut verdict) {
            return verdict;
        }
        if set.header.next == SET_NONE {
            let limited = verdict.limited.and_then(|id| rows.sets.get(id)).is_some_and(|s| s.owner == set.owner);
            (verdict.action, verdict.reason) = match (selected, limited) {
                (true, _) => (Action::Refused, Reason::SelfDial),
                (_, true) => (Action::Refused, Reason::Limited),
                _ => empty(set, empty_local),
            };
            return verdict;
        }
        id = set.header.next;
    }
    verdict
}

/// A socket's record holds while its backend lives in some set of the chain. Sets that bar dials are asked in their turn,
/// and a selected pod keeps nothing of the policy that selects it.
fn keep(
    rows: &Rows,
    dial: &Dial,
    (backend, generation): (BackendId, u32),
    mut id: SetId,
    verdict: &mut Verdict,
) -> bool {
    let mut path = Vec::new();
    for _ in 0..LINKS {
        let barred = |set: &&SetRow| set.header.own_node || set.header.restricted;
        let Some(set) = rows.sets.get(id).filter(|set| !barred(set)) else { return false };
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

/// What follows a socket's record costs nothing, a pick costs a token; an empty set has none to ask for.
fn take_from(
    rows: &Rows,
    dial: &Dial,
    (id, set): (SetId, &SetRow),
    buckets: &mut Buckets,
    verdict: &mut Verdict,
) -> bool {
    let members = live_members(rows, set);
    if members.is_empty() {
        return false;
    }
    let kept = dial.prefer.filter(|(b, generation)| is_member(rows, *b, Some(*generation), set));
    let limit = rows.buckets.get(&set.header.policy).filter(|_| set.header.limited && kept.is_none());
    if limit.is_some_and(|limit| !buckets.take(set.header.policy, *limit, dial.now)) {
        verdict.limited = Some(id);
        return false;
    }
    verdict.action = Action::Resolved;
    verdict.kept = kept.is_some();
    verdict.backends = kept.map_or(members, |(b, _)| vec![b]);
    true
}

fn is_selected(rows: &Rows, dial: &Dial, policy: PolicyId) -> bool {
    dial.cgroups.iter().any(|cgroup| rows.selected.contains(&(policy, *cgroup)))
}

fn empty(set: &SetRow, empty_local: EmptyLocal) -> (Action, Reason) {
    match set.header.when_empty {
        WhenEmpty::Refuse => (Action::Refused, Reason::NoEndpoint),
        WhenEmpty::Fail => fail(empty_local, Reason::NoLocal),
    }
}

/// The set speaks for itself before any pick.
fn bar(rows: &Rows, dial: &Dial, set: &SetRow, foreign: bool, empty_local: EmptyLocal) -> Option<(Action, Reason)> {
    if set.header.own_node && foreign {
        return Some(empty(set, empty_local));
    }
    if !set.header.restricted {
        return None;
    }
    let Some(source) = dial.source else { return Some((Action::Untouched, Reason::SourceUnknown)) };
    let allowed = rows.sources.iter().any(|(owner, net)| *owner == set.owner && net.contains(&source.ip()));
    (!allowed).then(|| fail(empty_local, Reason::SourceDenied))
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
