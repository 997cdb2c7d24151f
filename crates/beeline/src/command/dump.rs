//! `beeline dump`: the tables with the fields that operators of the earlier system know. docs/dump.md says how each
//! follows from our tables.

use super::services::kind_name;
use crate::args::{Dump, DumpTable};
use crate::live::Live;
use crate::print::{self, dash};
use beeline_agent::status::Request;
use beeline_datapath::level::Levels;
use beeline_datapath::reap::Surveyor;
use beeline_datapath::record::AffinityTable;
use beeline_model::row::{FrontendKey, Kind, NameKind, OwnerId, Rule, SetRow};
use serde::Serialize;
use std::collections::BTreeMap;
use std::process::ExitCode;

pub fn run(dump: &Dump) -> anyhow::Result<ExitCode> {
    let live = Live::open(&dump.view.place.pin_dir)?;
    let node = own_node(dump);
    match dump.table {
        DumpTable::Service => print_rows(dump, service_rows(&live, node.as_deref())),
        DumpTable::Backend => print_rows(dump, backend_rows(&live, &node_ips(dump))),
        DumpTable::Node => print_rows(dump, node_rows(&live)),
        DumpTable::Affinity => print_rows(dump, affinity_rows(&live)?),
        DumpTable::Nat => print_rows(dump, nat_rows(&live)?),
        DumpTable::Policy => print_rows(dump, policy_rows(&live)?),
        DumpTable::Member => print_rows(dump, member_rows(&live)),
    }?;
    Ok(ExitCode::SUCCESS)
}

/// One row: its key and its value, as named fields in order.
#[derive(Serialize)]
struct Row {
    key: Fields,
    value: Fields,
}

type Fields = Vec<(&'static str, String)>;

fn print_rows(dump: &Dump, rows: Vec<Row>) -> anyhow::Result<()> {
    let maps: Vec<BTreeMap<&str, BTreeMap<&str, &str>>> = rows
        .iter()
        .map(|row| {
            let object = |fields: &'_ Fields| -> BTreeMap<&str, String> { fields.iter().cloned().collect() };
            let _ = object;
            BTreeMap::from([
                ("key", row.key.iter().map(|(k, v)| (*k, v.as_str())).collect()),
                ("value", row.value.iter().map(|(k, v)| (*k, v.as_str())).collect()),
            ])
        })
        .collect();
    print::show(dump.view.output, &maps, || {
        let header: Vec<&str> =
            rows.first().map_or(Vec::new(), |r| r.key.iter().chain(&r.value).map(|(name, _)| *name).collect());
        let cells: Vec<Vec<String>> =
            rows.iter().map(|r| r.key.iter().chain(&r.value).map(|(_, v)| v.clone()).collect()).collect();
        let text = if rows.is_empty() { String::new() } else { print::table(&header, &cells) };
        format!("{text}{} rows\n", rows.len())
    })
}

fn own_node(dump: &Dump) -> Option<String> {
    let status = beeline_agent::ask(&dump.view.place.socket, &Request::Status)?.ok()?;
    status["node"].as_str().map(str::to_owned)
}

fn node_ips(dump: &Dump) -> BTreeMap<String, Vec<String>> {
    let status = beeline_agent::ask(&dump.view.place.socket, &Request::Status).and_then(Result::ok);
    status.and_then(|s| serde_json::from_value(s["nodes"].clone()).ok()).unwrap_or_default()
}

fn nat_type(rule: Rule) -> &'static str {
    match rule {
        Rule::Service => "service",
        Rule::Balancing => "balancing",
        Rule::Redirect => "localRedirect",
    }
}

fn number(live: &Live, owner: OwnerId) -> String {
    dash(live.rows.names.get(owner).filter(|n| n.kind == NameKind::ServicePort).map(|n| n.number))
}

fn flags(set: &SetRow, rule: Rule) -> String {
    let words = [
        (set.header.own_node, "ownNode"),
        (set.header.restricted, "sourceRanges"),
        (set.header.limited, "limit"),
        (set.header.self_next, "selfNext"),
    ];
    let said: Vec<&str> = words.iter().filter(|(on, _)| *on && set.rule == rule).map(|(_, word)| *word).collect();
    if said.is_empty() { "0".into() } else { said.join(",") }
}

fn service_rows(live: &Live, node: Option<&str>) -> Vec<Row> {
    let mut keys: Vec<&FrontendKey> = live.rows.frontends.keys().filter(|k| k.protocol.is_some()).collect();
    keys.sort();
    let row = |key: &FrontendKey| {
        let frontend = live.rows.frontends.get(key)?;
        let set = live.rows.sets.get(frontend.set)?;
        let members = live.rows.members(set);
        let is_local =
            |id: &&u32| live.rows.backends.get(**id).is_some_and(|b| node.is_some() && live.node_name(b.node) == node);
        Some(Row {
            key: vec![
                ("DestIp", key.address.to_string()),
                ("DestPort", key.port.to_string()),
                ("protocol", dash(key.protocol).to_lowercase()),
                ("NatType", nat_type(set.rule).into()),
                ("Scope", (key.scope as u8).to_string()),
            ],
            value: vec![
                ("SvcId", number(live, set.owner)),
                ("TotalBackendCount", members.len().to_string()),
                ("LocalBackendCount", node.map_or("-".into(), |_| members.iter().filter(is_local).count().to_string())),
                ("AffinitySecond", set.header.affinity.to_string()),
                ("ServiceFlags", flags(set, Rule::Service)),
                ("BalancingFlags", flags(set, Rule::Balancing)),
                ("RedirectFlags", flags(set, Rule::Redirect)),
                ("NatMode", kind_name(frontend.kind).into()),
                ("name", live.owner_text(set.owner)),
            ],
        })
    };
    keys.into_iter().filter_map(row).collect()
}

/// The port of a service port's ClusterIP, and its NodePort.
fn ports_of(live: &Live, owner: OwnerId) -> (Option<u16>, Option<u16>) {
    let mut found = (None, None);
    for (key, frontend) in &live.rows.frontends {
        let owned = live.rows.sets.get(frontend.set).is_some_and(|s| s.owner == owner);
        match frontend.kind {
            Kind::NodePort if owned => found.1 = Some(key.port),
            Kind::ClusterIp if owned && key.protocol.is_some() => found.0 = Some(key.port),
            _ => {}
        }
    }
    found
}

fn backend_rows(live: &Live, nodes: &BTreeMap<String, Vec<String>>) -> Vec<Row> {
    let mut by_owner: BTreeMap<OwnerId, Vec<u32>> = BTreeMap::new();
    for (id, b) in live.rows.backends.iter() {
        by_owner.entry(b.owner).or_default().push(id);
    }
    let mut rows = Vec::new();
    for (owner, mut ids) in by_owner {
        ids.sort_by_key(|id| (live.rows.backends[*id].address, live.rows.backends[*id].port));
        let (port, node_port) = ports_of(live, owner);
        let name = live.port_name(owner);
        for (order, id) in ids.iter().enumerate() {
            let b = live.rows.backends[*id];
            let family = b.address.family();
            let of_family = |ip: &&String| ip.contains(':') == (family == beeline_model::Family::V6);
            let node_ip = live.node_name(b.node).and_then(|n| nodes.get(n)).and_then(|ips| ips.iter().find(of_family));
            rows.push(Row {
                key: vec![
                    ("Order", order.to_string()),
                    ("SvcId", number(live, owner)),
                    ("port", dash(port)),
                    ("protocol", dash(name.as_ref().map(|n| n.protocol)).to_lowercase()),
                    ("NatType", "service".into()),
                    ("Scope", "0".into()),
                ],
                value: vec![
                    ("PodIp", b.address.to_string()),
                    ("PodPort", b.port.to_string()),
                    ("NodeIp", node_ip.cloned().unwrap_or_else(|| "0.0.0.0".into())),
                    ("NodePort", node_port.unwrap_or(0).to_string()),
                    ("node", dash(live.node_name(b.node))),
                    ("name", live.owner_text(owner)),
                ],
            });
        }
    }
    rows
}

fn node_rows(live: &Live) -> Vec<Row> {
    let word = |is: bool| if is { "yes" } else { "no" }.to_owned();
    let row = |(address, node): (&beeline_model::Address, &beeline_model::row::NodeRow)| Row {
        key: vec![("NodeIp", address.to_string())],
        value: vec![
            ("cluster", node.cluster.to_string()),
            ("own", word(node.own)),
            ("hostOnly", word(node.loopback)),
            ("alone", word(node.alone)),
        ],
    };
    live.rows.nodes.iter().map(row).collect()
}

fn affinity_rows(live: &Live) -> anyhow::Result<Vec<Row>> {
    let now = beeline_datapath::control::monotonic();
    let rows = AffinityTable::new(&live.maps)?.rows()?;
    let row = |r: &beeline_datapath::record::AffinityRow| Row {
        key: vec![
            ("client", r.client.to_string()),
            ("SvcId", number(live, r.owner)),
            ("name", live.owner_text(r.owner)),
        ],
        value: vec![
            ("PodIp", r.address.to_string()),
            ("PodPort", r.port.to_string()),
            ("ageSecond", format!("{:.1}", now.saturating_sub(r.used) as f64 / 1e9)),
        ],
    };
    Ok(rows.iter().map(row).collect())
}

fn nat_rows(live: &Live) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    for socket in Surveyor::new(&live.maps)?.all()? {
        rows.push(Row {
            key: vec![
                ("cookie", socket.cookie.to_string()),
                ("protocol", socket.protocol.to_string().to_lowercase()),
                ("OriginalDestIp", socket.dialled.to_string()),
                ("OriginalDestPort", socket.dialled_port.to_string()),
            ],
            value: vec![
                ("NatIp", socket.chosen.to_string()),
                ("NatPort", socket.chosen_port.to_string()),
                ("netns", socket.netns_inode.to_string()),
                ("name", live.owner_text(socket.owner)),
            ],
        });
    }
    Ok(rows)
}

fn policy_rows(live: &Live) -> anyhow::Result<Vec<Row>> {
    let (levels, now) = (Levels::new(&live.maps)?, beeline_datapath::control::monotonic());
    let mut rows = Vec::new();
    for (id, name) in live.rows.names.iter().filter(|(_, name)| name.kind == NameKind::Policy) {
        let limit = live.rows.buckets.get(&id);
        let tokens = limit.map(|limit| Ok(levels.of(id)?.tokens_at(now, *limit)));
        let tokens: Option<u64> = tokens.transpose().map_err(|e: beeline_datapath::Error| e)?;
        let sets = live.rows.sets.values().filter(|set| set.header.policy == id);
        rows.push(Row {
            key: vec![("policy", id.to_string())],
            value: vec![
                ("connectsPerSecond", dash(limit.map(|limit| limit.connects_per_second))),
                ("burst", dash(limit.map(|limit| limit.burst))),
                ("tokens", dash(tokens)),
                ("sets", sets.count().to_string()),
                ("members", live.rows.selected_by(id).count().to_string()),
                ("name", name.text.clone()),
            ],
        });
    }
    Ok(rows)
}

fn member_rows(live: &Live) -> Vec<Row> {
    let name = |policy| dash(live.rows.names.get(policy).map(|row| row.text.clone()));
    let row = |(policy, cgroup): &(u32, u64)| Row {
        key: vec![("cgroup", cgroup.to_string()), ("policy", policy.to_string())],
        value: vec![("name", name(*policy))],
    };
    live.rows.selected.iter().map(row).collect()
}
