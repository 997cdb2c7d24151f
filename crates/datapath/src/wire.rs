//! Converts rows of the model to the structs of abi.h and back. No other file depends on the layout of abi.h.

use crate::abi;
use crate::control::CgroupRule;
use crate::packet::PacketDevice;
use crate::pod_address::PodAddresses;
use beeline_model::bucket::BucketLevel;
use beeline_model::event::{Action, Reason};
use beeline_model::policy::Limit;
use beeline_model::row::*;
use beeline_model::{Address, Family, Protocol};
use ipnet::IpNet;
use std::net::IpAddr;

const _: () = assert!(SET_CLOSED == abi::set_id::SET_CLOSED.0 && SET_FIRST == abi::set_id::SET_FIRST.0);

pub const LAYOUT: u32 = abi::layout::LAYOUT.0;

pub fn address(a: Address) -> abi::address {
    let word = |i: usize| u32::from_ne_bytes([a.0[i], a.0[i + 1], a.0[i + 2], a.0[i + 3]]);
    abi::address { word: [word(0), word(4), word(8), word(12)] }
}

pub fn read_address(a: &abi::address) -> Address {
    let mut bytes = [0; 16];
    for (i, word) in a.word.iter().enumerate() {
        bytes[i * 4..i * 4 + 4].copy_from_slice(&word.to_ne_bytes());
    }
    Address(bytes)
}

// ---- tags: the same arithmetic as in bpf/find.h ----

fn mix(h: u64, w: u64) -> u64 {
    let h = (h ^ w).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    h ^ (h >> 29)
}

fn pair(low: u32, high: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

fn mix_address(a: &abi::address) -> u64 {
    mix(mix(0, pair(a.word[0], a.word[1])), pair(a.word[2], a.word[3]))
}

fn tag_of(k: &abi::frontend_key) -> u32 {
    let rest = u32::from(k.port) | u32::from(k.protocol) << 16 | u32::from(k.scope) << 24;
    (mix(mix_address(&k.address), pair(k.view, rest)) >> 32) as u32 & !abi::mark::MARK_KIND.0
}

// ---- frontend ----

#[allow(clippy::needless_update)] // The test layout has more fields.
pub fn frontend_key(key: &FrontendKey) -> abi::frontend_key {
    abi::frontend_key {
        address: address(key.address),
        view: key.view,
        port: key.port.to_be(),
        protocol: key.protocol.map_or(0, Protocol::number),
        scope: u8::from(key.scope == Scope::Outside),
        ..Default::default()
    }
}

pub fn read_frontend_key(k: &abi::frontend_key) -> FrontendKey {
    FrontendKey {
        address: read_address(&k.address),
        port: u16::from_be(k.port),
        protocol: Protocol::from_number(k.protocol),
        scope: if k.scope == 0 { Scope::Inside } else { Scope::Outside },
        view: k.view,
    }
}

fn kind_number(kind: FrontendKind) -> u32 {
    match kind {
        FrontendKind::ClusterIp => abi::kind::KIND_CLUSTER_IP.0,
        FrontendKind::NodePort => abi::kind::KIND_NODE_PORT.0,
        FrontendKind::LoadBalancer => abi::kind::KIND_LOAD_BALANCER.0,
        FrontendKind::ExternalIp => abi::kind::KIND_EXTERNAL_IP.0,
        FrontendKind::Virtual => abi::kind::KIND_VIRTUAL.0,
    }
}

pub fn read_kind(number: u8) -> Option<FrontendKind> {
    FrontendKind::ALL.into_iter().find(|k| kind_number(*k) == u32::from(number))
}

pub fn frontend(key: &abi::frontend_key, row: &FrontendRow) -> abi::frontend {
    abi::frontend { mark: tag_of(key) | kind_number(row.kind), set: row.set }
}

pub fn read_frontend(f: &abi::frontend) -> Option<FrontendRow> {
    let kind = read_kind((f.mark & abi::mark::MARK_KIND.0) as u8)?;
    Some(FrontendRow { set: f.set, kind })
}

// ---- set ----

pub fn span(span: &SlotSpan) -> u64 {
    let base = match span.base {
        Base::Inline => abi::span_base::SPAN_INLINE.0,
        Base::Range(base) => base,
    };
    u64::from(base) | u64::from(span.count) << 32 | u64::from(span.generation) << 48
}

fn read_span(word: u64) -> SlotSpan {
    let base = word as u32;
    SlotSpan {
        base: if base == abi::span_base::SPAN_INLINE.0 { Base::Inline } else { Base::Range(base) },
        count: (word >> 32) as u16,
        generation: (word >> 48) as u16,
    }
}

pub fn when_empty(w: WhenEmpty) -> u8 {
    match w {
        WhenEmpty::Refuse => abi::when_empty::EMPTY_REFUSE.0 as u8,
        WhenEmpty::Fail => abi::when_empty::EMPTY_FAIL.0 as u8,
    }
}

pub fn set_flags(header: &SetHeader, family: Family) -> u8 {
    let mut flags = 0;
    for (on, flag) in [
        (header.restricted, abi::set_flag::SET_SOURCE_RANGES),
        (header.own_node, abi::set_flag::SET_OWN_NODE),
        (header.self_next, abi::set_flag::SET_SELF_NEXT),
        (header.limited, abi::set_flag::SET_LIMITED),
        (family == Family::V6, abi::set_flag::SET_V6),
    ] {
        flags |= if on { flag.0 as u8 } else { 0 };
    }
    flags
}

fn rule_number(rule: Rule) -> u8 {
    (match rule {
        Rule::Service => abi::rule::RULE_SERVICE,
        Rule::Balancing => abi::rule::RULE_BALANCING,
        Rule::Redirect => abi::rule::RULE_REDIRECT,
    })
    .0 as u8
}

pub fn read_rule(number: u8) -> Option<Rule> {
    [Rule::Service, Rule::Balancing, Rule::Redirect].into_iter().find(|r| rule_number(*r) == number)
}

#[allow(clippy::needless_update)]
pub fn set(row: &SetRow) -> abi::set {
    abi::set {
        span: span(&row.span),
        next: row.header.next,
        owner: row.owner,
        affinity: row.header.affinity,
        policy: row.header.policy,
        node: row.node,
        role: row.role as u8,
        rule: rule_number(row.rule),
        when_empty: when_empty(row.header.when_empty),
        flags: set_flags(&row.header, row.family),
        slot: row.inline,
        ..Default::default()
    }
}

pub fn read_set(s: &abi::set) -> Option<SetRow> {
    let has = |flag: abi::set_flag| s.flags & flag.0 as u8 != 0;
    Some(SetRow {
        span: read_span(s.span),
        owner: s.owner,
        family: if has(abi::set_flag::SET_V6) { Family::V6 } else { Family::V4 },
        role: [Role::Cluster, Role::Local, Role::Node].into_iter().find(|r| *r as u8 == s.role)?,
        node: s.node,
        rule: read_rule(s.rule)?,
        header: SetHeader {
            next: s.next,
            affinity: s.affinity,
            policy: s.policy,
            limited: has(abi::set_flag::SET_LIMITED),
            self_next: has(abi::set_flag::SET_SELF_NEXT),
            when_empty: if s.when_empty == 0 { WhenEmpty::Refuse } else { WhenEmpty::Fail },
            restricted: has(abi::set_flag::SET_SOURCE_RANGES),
            own_node: has(abi::set_flag::SET_OWN_NODE),
        },
        inline: s.slot,
    })
}

// ---- backend ----

pub fn state(state: &BackendState) -> u32 {
    state.generation << 8 | u32::from(state.roles)
}

pub fn read_state(word: u32) -> BackendState {
    BackendState { generation: word >> 8, roles: word as u8 }
}

#[allow(clippy::needless_update)]
pub fn backend(row: &BackendRow) -> abi::backend {
    abi::backend {
        address: address(row.address),
        port: row.port.to_be(),
        flags: if row.udp { abi::backend_flag::BACKEND_UDP.0 as u16 } else { 0 },
        node: row.node,
        owner: row.owner,
        state: state(&row.state),
        ..Default::default()
    }
}

pub fn read_backend(b: &abi::backend) -> BackendRow {
    BackendRow {
        address: read_address(&b.address),
        port: u16::from_be(b.port),
        node: b.node,
        owner: b.owner,
        udp: u32::from(b.flags) & abi::backend_flag::BACKEND_UDP.0 != 0,
        state: read_state(b.state),
    }
}

pub fn backend_index_key(row: &BackendRow) -> abi::backend_index_key {
    abi::backend_index_key { address: address(row.address), owner: row.owner, port: row.port.to_be(), pad: 0 }
}

/// The fields of a backend that its key has.
pub fn read_backend_index_key(key: &abi::backend_index_key) -> BackendRow {
    BackendRow {
        address: read_address(&key.address),
        port: u16::from_be(key.port),
        node: 0,
        owner: key.owner,
        udp: true,
        state: BackendState { generation: 0, roles: 0 },
    }
}

// ---- node, source, name ----

pub fn node(at: &abi::address, row: &NodeRow) -> abi::node {
    let own = if row.own { abi::node_flag::NODE_OWN.0 } else { 0 };
    let loopback = if row.loopback { abi::node_flag::NODE_LOOPBACK.0 } else { 0 };
    let exact_loopback = if row.exact_loopback { abi::node_flag::NODE_EXACT_LOOPBACK.0 } else { 0 };
    abi::node {
        tag: (mix_address(at) >> 32) as u32,
        cluster: row.cluster,
        flags: (own | loopback | exact_loopback) as u16,
    }
}

pub fn read_node(n: &abi::node) -> NodeRow {
    let has = |flag: abi::node_flag| u32::from(n.flags) & flag.0 != 0;
    NodeRow {
        cluster: n.cluster,
        own: has(abi::node_flag::NODE_OWN),
        loopback: has(abi::node_flag::NODE_LOOPBACK),
        exact_loopback: has(abi::node_flag::NODE_EXACT_LOOPBACK),
    }
}

/// Bits of the key before the address.
const FIXED_BITS: u32 = 64;
/// Bits of a mapped address before the IPv4 address.
const MAPPED_BITS: u32 = 96;

pub fn source_key(owner: OwnerId, net: &IpNet) -> abi::source_key {
    let (family, mapped) = if net.addr().is_ipv4() { (4, MAPPED_BITS) } else { (6, 0) };
    let prefix = FIXED_BITS + mapped + u32::from(net.prefix_len());
    abi::source_key { prefix, owner, family, address: address(Address::from(net.network())) }
}

pub fn read_source_key(k: &abi::source_key) -> Option<(OwnerId, IpNet)> {
    let Address(bytes) = read_address(&k.address);
    let (ip, mapped) = match k.family {
        4 => (read_address(&k.address).ip(), MAPPED_BITS),
        // Not through `Address`: an IPv6 range may contain mapped addresses.
        _ => (IpAddr::from(bytes), 0),
    };
    let length = k.prefix.checked_sub(FIXED_BITS + mapped)?;
    Some((k.owner, IpNet::new(ip, u8::try_from(length).ok()?).ok()?))
}

// ---- packet path ----

pub fn pod_range_key(net: &IpNet) -> abi::pod_range_key {
    let mapped = if net.addr().is_ipv4() { MAPPED_BITS } else { 0 };
    abi::pod_range_key { prefix: mapped + u32::from(net.prefix_len()), address: address(Address::from(net.network())) }
}

/// The key that finds the range of an address.
pub fn address_key(at: Address) -> abi::pod_range_key {
    abi::pod_range_key { prefix: 128, address: address(at) }
}

pub fn device(device: &PacketDevice) -> abi::device {
    abi::device { flags: device.flags() }
}

// ---- policies ----

/// The limit as one word; 0 means no limit.
pub fn bucket(limit: Option<Limit>) -> u64 {
    limit.map_or(0, |limit| pair(limit.connects_per_second, limit.burst))
}

pub fn read_bucket(word: u64) -> Option<Limit> {
    (word != 0).then_some(Limit { connects_per_second: word as u32, burst: (word >> 32) as u32 })
}

pub fn read_level(level: &abi::level) -> BucketLevel {
    BucketLevel { time: level.time, credit: level.credit }
}

pub fn member_key(policy: PolicyId, cgroup: u64) -> abi::member_key {
    abi::member_key { cgroup, policy, pad: 0 }
}

pub fn name(row: &NameRow) -> abi::name {
    let mut name = abi::name { number: row.number, ..Default::default() };
    name.kind = (match row.kind {
        NameKind::ServicePort => abi::name_kind::NAME_SERVICE_PORT,
        NameKind::Node => abi::name_kind::NAME_NODE,
        NameKind::Policy => abi::name_kind::NAME_POLICY,
    })
    .0 as u16;
    let length = row.text.len().min(name.text.len());
    name.text[..length].copy_from_slice(&row.text.as_bytes()[..length]);
    name.length = length as u16;
    name
}

pub fn read_name(n: &abi::name) -> Option<NameRow> {
    let kind = match abi::name_kind(u32::from(n.kind)) {
        abi::name_kind::NAME_SERVICE_PORT => NameKind::ServicePort,
        abi::name_kind::NAME_NODE => NameKind::Node,
        abi::name_kind::NAME_POLICY => NameKind::Policy,
        _ => return None,
    };
    let text = n.text.get(..usize::from(n.length)).filter(|t| !t.is_empty())?;
    Some(NameRow { kind, number: n.number, text: String::from_utf8(text.to_vec()).ok()? })
}

// ---- cgroup rules ----

fn tag_of_cgroup(id: u64) -> u32 {
    (mix(0, id) >> 32) as u32
}

pub fn cgroup_rule(id: u64, rule: CgroupRule) -> abi::cgroup_rule {
    let view = if rule.excluded { abi::cgroup_view::CGROUP_EXCLUDED.0 } else { rule.view };
    abi::cgroup_rule { tag: tag_of_cgroup(id), view }
}

pub fn read_cgroup_rule(rule: &abi::cgroup_rule) -> CgroupRule {
    match rule.view == abi::cgroup_view::CGROUP_EXCLUDED.0 {
        true => CgroupRule::EXCLUDED,
        false => CgroupRule { excluded: false, view: rule.view },
    }
}

// ---- pods ----

pub fn pod(cgroup: u64, pod: &PodAddresses) -> abi::pod {
    abi::pod {
        tag: tag_of_cgroup(cgroup),
        v4: pod.v4.map_or(0, |v4| address(v4).word[3]),
        v6: pod.v6.map(address).unwrap_or_default(),
    }
}

// ---- verdicts ----

pub fn read_action(number: u8) -> Action {
    match abi::action(u32::from(number)) {
        abi::action::ACTION_RESOLVED => Action::Resolved,
        abi::action::ACTION_REFUSED => Action::Refused,
        _ => Action::Untouched,
    }
}

pub fn read_reason(number: u8) -> Reason {
    match abi::reason(u32::from(number)) {
        abi::reason::REASON_NO_ENDPOINT => Reason::NoEndpoint,
        abi::reason::REASON_NO_LOCAL => Reason::NoLocal,
        abi::reason::REASON_NO_PORT => Reason::NoPort,
        abi::reason::REASON_SOURCE_DENIED => Reason::SourceDenied,
        abi::reason::REASON_SOURCE_UNKNOWN => Reason::SourceUnknown,
        abi::reason::REASON_RECORD => Reason::Record,
        abi::reason::REASON_LIMITED => Reason::Limited,
        abi::reason::REASON_SELF => Reason::SelfDial,
        _ => Reason::None,
    }
}
