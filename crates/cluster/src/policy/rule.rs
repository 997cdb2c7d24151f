//! The CEL rules of the policies, each with the message that a user reads.
//!
//! The API server estimates the maximum cost of a rule from the bounds of lists and texts in the schema, and rejects a
//! definition over its budget. So every list and text has a bound. Objects in different fields have different types in
//! CEL, so lists of ports cannot be selected by `?:`; a rule about pairs is written out for each pair of fields.

use super::MAX_TARGETS;
use beeline_model::metadata_address::ranges;
use ipnet::IpNet;
use kube::core::Rule;

/// The parents of a list of frontend ports and of a list of backend ports.
type Pairs = &'static [(&'static str, &'static str)];

pub(super) const LOCAL: Pairs = &[(SERVICE, "self.backend"), (ADDRESS, "self.backend")];
pub(super) const BALANCING: Pairs = &[
    (SERVICE, "self.backend.serviceEndpoint"),
    (SERVICE, "self.backend.addressEndpoint"),
    (ADDRESS, "self.backend.serviceEndpoint"),
    (ADDRESS, "self.backend.addressEndpoint"),
];
const SERVICE: &str = "self.frontend.serviceMatcher";
const ADDRESS: &str = "self.frontend.addressMatcher";

pub(super) const PORT_NAME: &str = "write a name of a-z, 0-9 and '-', or leave it out where there is a single port";

fn rule(rule: impl Into<String>, message: &str) -> Rule {
    Rule::new(rule).message(message)
}

pub(super) fn name() -> Rule {
    rule("self.metadata.name.size() <= 63", "metadata.name may have at most 63 characters: choose a shorter name")
}

pub(super) fn one_of(a: &str, b: &str) -> Rule {
    rule(format!("has(self.{a}) != has(self.{b})"), &format!("write exactly one of {a} and {b}"))
}

pub(super) fn label(message: &str) -> Rule {
    rule("self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')", message)
}

/// The positions of a container port's name, which has at most 15 characters.
const POSITIONS: &str = "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]";

/// CEL sees no bound for the length of a text that may also be a number, so `matches` would cost too much. `charAt` at few
/// positions has a fixed cost.
fn port_name(condition: &str, message: &str) -> Rule {
    rule(format!("type(self) == int || {condition}"), message)
}

/// The earlier system wrote every port as a text.
pub(super) fn port_is_no_quoted_number() -> Rule {
    let has_letter = format!("{POSITIONS}.exists(i, i < self.size() && self.charAt(i) >= 'A')");
    let message = "write a number without quotes, such as 8080, or the name of a container port, which has a letter";
    port_name(&has_letter, message)
}

pub(super) fn container_port_name() -> Rule {
    let letters: Vec<String> = ('a'..='z').chain('0'..='9').chain(['-']).map(|c| format!("'{c}'")).collect();
    let allowed = format!("{POSITIONS}.all(i, i >= self.size() || self.charAt(i) in [{}])", letters.join(", "));
    let pair = "self.charAt(i) == '-' && self.charAt(i + 1) == '-'";
    let no_pair = format!("!{POSITIONS}.exists(i, i + 1 < self.size() && {pair})");
    let ends = "!self.startsWith('-') && !self.endsWith('-')";
    let message =
        "write the name of a container port: a-z, 0-9 and single '-', beginning and ending with a letter or digit";
    port_name(&format!("{ends} && {allowed} && {no_pair}"), message)
}

pub(super) fn address() -> Rule {
    let message = "write an IP address in its shortest form, such as 169.254.20.10 or fd00:bee::10";
    rule("isIP(self) && ip.isCanonical(self)", message)
}

/// A link-local address is allowed as a virtual address.
pub(super) fn dialable() -> Rule {
    let message =
        "write an address that one host can have: not 0.0.0.0, ::, a loopback, multicast or broadcast address";
    rule("!isIP(self) || ip(self).isGlobalUnicast() || ip(self).isLinkLocalUnicast()", message)
}

/// The API server's own rule for endpoints. A policy that could send dials to a link-local address could send them to
/// the metadata server of the cloud.
pub(super) fn reachable() -> Rule {
    let message = "write an address that other hosts can reach: not 0.0.0.0, ::, a loopback, link-local, multicast or broadcast address";
    rule("!isIP(self) || ip(self).isGlobalUnicast()", message)
}

/// The metadata addresses of clouds that are not link-local. Addresses are canonical, so their texts can be compared.
/// `reachable` refuses the link-local ones.
pub(super) fn no_metadata() -> Rule {
    let (single, wide): (Vec<&IpNet>, Vec<&IpNet>) = ranges()
        .iter()
        .filter(|range| !is_link_local(range))
        .partition(|range| range.prefix_len() == range.max_prefix_len());
    let single: Vec<String> = single.iter().map(|range| format!("'{}'", range.addr())).collect();
    // `fd00:ec2::/32` is every text that starts with `fd00:ec2:`.
    let prefix = |range: &IpNet| range.addr().to_string().replace("::", ":");
    let wide = wide.iter().map(|range| format!(" && !self.startsWith('{}')", prefix(range)));
    let message = "this is the metadata address of a cloud, which gives access to the credentials of nodes: write another address";
    rule(format!("!(self in [{}]){}", single.join(", "), wide.collect::<String>()), message)
}

fn is_link_local(range: &IpNet) -> bool {
    match range {
        IpNet::V4(range) => range.addr().is_link_local(),
        IpNet::V6(range) => range.addr().is_unicast_link_local(),
    }
}

pub(super) fn bounded() -> Rule {
    let message = format!("addresses times toPorts may be at most {MAX_TARGETS}: split the policy");
    rule(format!("self.addresses.size() * self.toPorts.size() <= {MAX_TARGETS}"), &message)
}

pub(super) fn all_named() -> Rule {
    let message = "more than one port: give each a name, which pairs the frontend's ports with the backend's";
    rule("self.size() < 2 || self.all(p, has(p.name))", message)
}

pub(super) fn unique_names() -> Rule {
    let once = "self.all(p, !has(p.name) || self.exists_one(q, has(q.name) && q.name == p.name))";
    rule(once, "a name is used twice: give each port a name of its own")
}

pub(super) fn counted(pairs: Pairs) -> Rule {
    let message = "write the same number of toPorts for the backend and the frontend: they are paired";
    each(pairs, "FRONT.toPorts.size() == BACK.toPorts.size()", message)
}

/// In a single pair one side may omit the name.
const PARTNERS: &str = "(has(f.name) && has(b.name) ? f.name == b.name : BACK.toPorts.size() == 1)";

/// This rule holds if the counts differ or names are missing, because other rules report these: one message per
/// mistake.
pub(super) fn named(pairs: Pairs) -> Rule {
    let found = format!("FRONT.toPorts.all(f, !has(f.name) || BACK.toPorts.exists(b, {PARTNERS}))");
    let named = "BACK.toPorts.all(b, has(b.name) || BACK.toPorts.size() == 1)";
    let condition = format!("(FRONT.toPorts.size() != BACK.toPorts.size() || !{named} || {found})");
    each(
        pairs,
        &condition,
        "a port of the frontend has no counterpart: give one of the backend's toPorts the same name",
    )
}

pub(super) fn same_protocol(pairs: Pairs) -> Rule {
    let some = |more: &str| format!("BACK.toPorts.exists(b, {PARTNERS}{more})");
    let condition = format!("FRONT.toPorts.all(f, !{} || {})", some(""), some(" && b.protocol == f.protocol"));
    each(pairs, &condition, "paired ports have different protocols: write the same protocol for both")
}

fn each(pairs: Pairs, condition: &str, message: &str) -> Rule {
    let written = pairs.iter().map(|(front, back)| {
        let condition = condition.replace("FRONT", front).replace("BACK", back);
        format!("({} || {condition})", missing(front, back))
    });
    rule(written.collect::<Vec<_>>().join(" && "), message)
}

/// One of the two lists is absent. Another rule checks that, or the policy covers every port of the Service.
fn missing(front: &str, back: &str) -> String {
    let parts = [front.to_owned(), format!("{front}.toPorts"), back.to_owned(), format!("{back}.toPorts")];
    parts.map(|part| format!("!has({part})")).join(" || ")
}

pub(super) fn values_needed() -> Rule {
    let message = "In and NotIn need values: write at least one";
    rule("!(self.operator in ['In', 'NotIn']) || has(self.values) && self.values.size() > 0", message)
}

pub(super) fn no_values() -> Rule {
    let message = "Exists and DoesNotExist take no values: leave them out";
    rule("self.operator in ['In', 'NotIn'] || !has(self.values) || self.values.size() == 0", message)
}

const KEY: &str = "^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$";
const KEY_MESSAGE: &str = "write the key of a label, such as app or example.org/app";

pub(super) fn label_key() -> Rule {
    rule(format!("self.matches('{KEY}')"), KEY_MESSAGE)
}

pub(super) fn label_keys() -> Rule {
    rule(format!("self.all(key, key.size() <= 317 && key.matches('{KEY}'))"), KEY_MESSAGE)
}

pub(super) fn label_value() -> Rule {
    let message =
        "write the value of a label: letters, digits, '-', '_' and '.', beginning and ending with a letter or digit";
    rule("self.matches('^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$')", message)
}
