//! Selects the endpoints of a service port for this node. The plan, `explain` and the health checks all use this
//! function.
//!
//! ```text
//! topology, over READY endpoints only:
//!   none ready                                   -> no topology
//!   ALL have node hints and ANY names this node  -> same node
//!   else ALL have zone hints and ANY this zone   -> same zone
//!   else                                         -> all
//! cluster set = ready endpoints that the topology keeps; if empty: all serving and terminating ones
//! local set   = local and ready; if empty: local, serving and terminating; hints never apply
//! ```

use crate::address::Address;
use crate::name::Name;
use crate::object::{Endpoint, Hints};
use std::collections::BTreeMap;

/// An endpoint of one service port. The port number comes from its slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub address: Address,
    pub port: u16,
    pub ready: bool,
    pub serving: bool,
    pub terminating: bool,
    pub local: bool,
    /// The node of the endpoint, if known.
    pub node: Option<Name>,
    pub hints: Option<Box<Hints>>,
}

impl Candidate {
    pub fn new(endpoint: &Endpoint, port: u16, node: Option<Name>, local: bool) -> Candidate {
        let Endpoint { address, ready, serving, terminating, .. } = *endpoint;
        Candidate { address, port, ready, serving, terminating, local, node, hints: endpoint.hints.clone() }
    }

    /// A terminating endpoint that still serves. Used only in a set that has no ready endpoint.
    fn is_last_resort(&self) -> bool {
        !self.ready && self.serving && self.terminating
    }

    /// When several slices list one address and port: an endpoint that is not terminating wins, then a ready one, then
    /// a serving one.
    fn rank(&self) -> (bool, bool, bool) {
        (!self.terminating, self.ready, self.serving)
    }
}

/// The node and zone that topology hints and Local policies are compared with.
#[derive(Clone, Debug)]
pub struct NodeLocation {
    pub node: Name,
    pub zone: Option<Name>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    None,
    SameNode,
    SameZone,
    All,
}

#[derive(Clone, Debug)]
pub struct Selection {
    /// Sorted by address and port, without duplicates.
    pub candidates: Vec<Candidate>,
    pub topology: Topology,
    /// Indexes into `candidates`.
    pub cluster: Vec<usize>,
    pub local: Vec<usize>,
    /// Whether any endpoint anywhere could serve. Decides between refusing a dial and applying
    /// `--no-local-endpoint-action`.
    pub any: bool,
}

pub fn select(candidates: Vec<Candidate>, location: &NodeLocation) -> Selection {
    let candidates = merge(candidates);
    let topology = topology(&candidates, location);
    let cluster = cluster_set(&candidates, topology, location);
    let local = local_set(&candidates, |c| c.local);
    let any = candidates.iter().any(|c| c.ready || c.is_last_resort());
    Selection { candidates, topology, cluster, local, any }
}

impl Selection {
    /// The local set of every node, for externalTrafficPolicy Local.
    pub fn node_sets(&self) -> BTreeMap<Name, Vec<usize>> {
        let mut nodes: BTreeMap<Name, [Vec<usize>; 2]> = BTreeMap::new();
        for (i, c) in self.candidates.iter().enumerate() {
            let Some(node) = &c.node else { continue };
            if c.ready || c.is_last_resort() {
                nodes.entry(node.clone()).or_default()[usize::from(!c.ready)].push(i);
            }
        }
        let first = |[ready, last_resort]: [Vec<usize>; 2]| if ready.is_empty() { last_resort } else { ready };
        nodes.into_iter().map(|(node, sets)| (node, first(sets))).collect()
    }
}

/// Of equal candidates the first is kept (slices are in the order of their names). If only a later one names its node,
/// that node is used.
fn merge(mut candidates: Vec<Candidate>) -> Vec<Candidate> {
    candidates.sort_by(|a, b| (a.address, a.port, b.rank()).cmp(&(b.address, b.port, a.rank())));
    candidates.dedup_by(|later, kept| {
        let same = (later.address, later.port) == (kept.address, kept.port);
        if same && later.rank() == kept.rank() && kept.node.is_none() {
            (kept.node, kept.local) = (later.node.take(), later.local);
        }
        same
    });
    candidates
}

fn hinted<'a>(c: &'a Candidate, which: impl Fn(&'a Hints) -> &'a [Name]) -> &'a [Name] {
    c.hints.as_deref().map_or(&[], which)
}

fn node_hints(c: &Candidate) -> &[Name] {
    hinted(c, |h| &h.nodes)
}

fn zone_hints(c: &Candidate) -> &[Name] {
    hinted(c, |h| &h.zones)
}

fn topology(candidates: &[Candidate], location: &NodeLocation) -> Topology {
    let ready = || candidates.iter().filter(|c| c.ready);
    let applies = |hints: fn(&Candidate) -> &[Name], own: Option<&Name>| {
        ready().all(|c| !hints(c).is_empty()) && ready().any(|c| own.is_some_and(|own| hints(c).contains(own)))
    };
    match () {
        () if ready().next().is_none() => Topology::None,
        () if applies(node_hints, Some(&location.node)) => Topology::SameNode,
        () if applies(zone_hints, location.zone.as_ref()) => Topology::SameZone,
        () => Topology::All,
    }
}

fn keeps(topology: Topology, c: &Candidate, location: &NodeLocation) -> bool {
    match topology {
        Topology::None | Topology::All => true,
        Topology::SameNode => node_hints(c).contains(&location.node),
        Topology::SameZone => location.zone.as_ref().is_some_and(|z| zone_hints(c).contains(z)),
    }
}

fn cluster_set(candidates: &[Candidate], topology: Topology, location: &NodeLocation) -> Vec<usize> {
    let ready = indexes(candidates, |c| c.ready && keeps(topology, c, location));
    if ready.is_empty() { indexes(candidates, Candidate::is_last_resort) } else { ready }
}

fn local_set(candidates: &[Candidate], local: impl Fn(&Candidate) -> bool) -> Vec<usize> {
    let ready = indexes(candidates, |c| c.ready && local(c));
    if ready.is_empty() { indexes(candidates, |c| c.is_last_resort() && local(c)) } else { ready }
}

fn indexes(candidates: &[Candidate], keep: impl Fn(&Candidate) -> bool) -> Vec<usize> {
    candidates.iter().enumerate().filter(|(_, c)| keep(c)).map(|(i, _)| i).collect()
}
