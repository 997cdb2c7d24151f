//! `beeline dump`: the kernel's tables, with the field names of the earlier system that operators know. docs/dump.md
//! describes how each field follows from the tables.

use super::services::kind_name;
use crate::args::{DumpArgs, DumpTable};
use crate::live_tables::LiveTables;
use crate::print::{self, or_dash};
use beeline_api::AgentClient;
use beeline_datapath::affinity::{AffinityRow, AffinityTable};
use beeline_datapath::bucket::BucketLevels;
use beeline_datapath::control::monotonic;
use beeline_datapath::reap::SocketRecordReader;
use beeline_model::row::{FrontendKey, FrontendKind, NameKind, NodeRow, OwnerId, Rule, SetRow};
use beeline_model::{Address, Family};
use std::collections::BTreeMap;
use std::process::ExitCode;

pub fn run(args: &DumpArgs) -> anyhow::Result<ExitCode> {
    let tables = LiveTables::of_agent(&args.query.paths)?;
    let status = || AgentClient::new(&args.query.paths.socket).status().ok();
    let rows = match args.table {
        DumpTable::Service => service_rows(&tables, status().map(|status| status.node).as_deref()),
        DumpTable::Backend => backend_rows(&tables, &status().map(|status| status.nodes).unwrap_or_default()),
        DumpTable::Node => node_rows(&tables),
        DumpTable::Affinity => affinity_rows(&tables)?,
        DumpTable::Nat => nat_rows(&tables)?,
        DumpTable::Policy => policy_rows(&tables)?,
        DumpTable::Member => member_rows(&tables),
    };
    print_rows(args, &rows)?;
    Ok(ExitCode::SUCCESS)
}

/// One row of a table: named fields, in the order of the columns.
struct DumpRow {
    key: Fields,
    value: Fields,
}

type Fields = Vec<(&'static str, String)>;

fn print_rows(args: &DumpArgs, rows: &[DumpRow]) -> anyhow::Result<()> {
    let object = |fields: &Fields| fields.iter().cloned().collect::<BTreeMap<_, _>>();
    let objects: Vec<BTreeMap<&str, BTreeMap<&str, String>>> =
        rows.iter().map(|row| BTreeMap::from([("key", object(&row.key)), ("value", object(&row.value))])).collect();
    print::write(args.query.output, &objects, || table(rows))
}

fn table(rows: &[DumpRow]) -> String {
    let Some(first) = rows.first() else { return "0 rows\n".into() };
    let header: Vec<&str> = first.key.iter().chain(&first.value).map(|(name, _)| *name).collect();
    let cells = |row: &DumpRow| row.key.iter().chain(&row.value).map(|(_, value)| value.clone()).collect();
    let cells: Vec<Vec<String>> = rows.iter().map(cells).collect();
    format!("{}{}\n", print::table(&header, &cells), print::plural(rows.len(), "row"))
}

fn nat_type(rule: Rule) -> &'static str {
    match rule {
        Rule::Service => "service",
        Rule::Balancing => "balancing",
        Rule::Redirect => "localRedirect",
    }
}

fn number(tables: &LiveTables, owner: OwnerId) -> String {
    or_dash(tables.rows.names.get(owner).filter(|n| n.kind == NameKind::ServicePort).map(|n| n.number))
}

fn flags(set: &SetRow, rule: Rule) -> String {
    let words = [
        (set.header.own_node, "ownNode"),
        (set.header.restricted, "sourceRanges"),
        (set.header.limited, "limit"),
        (set.header.self_next, "selfNext"),
    ];
    let set_flags: Vec<&str> = words.iter().filter(|(on, _)| *on && set.rule == rule).map(|(_, word)| *word).collect();
    if set_flags.is_empty() { "0".into() } else { set_flags.join(",") }
}

fn service_rows(tables: &LiveTables, node: Option<&str>) -> Vec<DumpRow> {
    let mut keys: Vec<&FrontendKey> = tables.rows.frontends.keys().filter(|k| k.protocol.is_some()).collect();
    keys.sort();
    let row = |key: &FrontendKey| {
        let frontend = tables.rows.frontends.get(key)?;
        let set = tables.rows.sets.get(frontend.set)?;
        let members = tables.rows.members(set);
        let is_local = |id: &&u32| {
            tables.rows.backends.get(**id).is_some_and(|b| node.is_some() && tables.node_name(b.node) == node)
        };
        Some(DumpRow {
            key: vec![
                ("DestIp", key.address.to_string()),
                ("DestPort", key.port.to_string()),
                ("protocol", or_dash(key.protocol).to_lowercase()),
                ("NatType", nat_type(set.rule).into()),
                ("Scope", (key.scope as u8).to_string()),
            ],
            value: vec![
                ("SvcId", number(tables, set.owner)),
                ("TotalBackendCount", members.len().to_string()),
                ("LocalBackendCount", node.map_or("-".into(), |_| members.iter().filter(is_local).count().to_string())),
                ("AffinitySecond", set.header.affinity.to_string()),
                ("ServiceFlags", flags(set, Rule::Service)),
                ("BalancingFlags", flags(set, Rule::Balancing)),
                ("RedirectFlags", flags(set, Rule::Redirect)),
                ("NatMode", kind_name(frontend.kind).into()),
                ("name", tables.owner_text(set.owner)),
            ],
        })
    };
    keys.into_iter().filter_map(row).collect()
}

/// The port of a service port's ClusterIP, and its NodePort.
fn ports_of(tables: &LiveTables, owner: OwnerId) -> (Option<u16>, Option<u16>) {
    let mut found = (None, None);
    for (key, frontend) in &tables.rows.frontends {
        let owned = tables.rows.sets.get(frontend.set).is_some_and(|s| s.owner == owner);
        match frontend.kind {
            FrontendKind::NodePort if owned => found.1 = Some(key.port),
            FrontendKind::ClusterIp if owned && key.protocol.is_some() => found.0 = Some(key.port),
            _ => {}
        }
    }
    found
}

fn backend_rows(tables: &LiveTables, nodes: &BTreeMap<String, Vec<String>>) -> Vec<DumpRow> {
    let mut by_owner: BTreeMap<OwnerId, Vec<u32>> = BTreeMap::new();
    for (id, b) in tables.rows.backends.iter() {
        by_owner.entry(b.owner).or_default().push(id);
    }
    let mut rows = Vec::new();
    for (owner, mut ids) in by_owner {
        ids.sort_by_key(|id| (tables.rows.backends[*id].address, tables.rows.backends[*id].port));
        let (port, node_port) = ports_of(tables, owner);
        let name = tables.port_name(owner);
        for (order, id) in ids.iter().enumerate() {
            let b = tables.rows.backends[*id];
            let family = b.address.family();
            let of_family = |ip: &&String| ip.contains(':') == (family == Family::V6);
            let node_ip =
                tables.node_name(b.node).and_then(|n| nodes.get(n)).and_then(|ips| ips.iter().find(of_family));
            rows.push(DumpRow {
                key: vec![
                    ("Order", order.to_string()),
                    ("SvcId", number(tables, owner)),
                    ("port", or_dash(port)),
                    ("protocol", or_dash(name.as_ref().map(|n| n.protocol)).to_lowercase()),
                    ("NatType", "service".into()),
                    ("Scope", "0".into()),
                ],
                value: vec![
                    ("PodIp", b.address.to_string()),
                    ("PodPort", b.port.to_string()),
                    ("NodeIp", node_ip.cloned().unwrap_or_else(|| "0.0.0.0".into())),
                    ("NodePort", node_port.unwrap_or(0).to_string()),
                    ("node", or_dash(tables.node_name(b.node))),
                    ("name", tables.owner_text(owner)),
                ],
            });
        }
    }
    rows
}

fn node_rows(tables: &LiveTables) -> Vec<DumpRow> {
    let word = |is: bool| if is { "yes" } else { "no" }.to_owned();
    let row = |(address, node): (&Address, &NodeRow)| DumpRow {
        key: vec![("NodeIp", address.to_string())],
        value: vec![
            ("cluster", node.cluster.to_string()),
            ("own", word(node.own)),
            ("hostOnly", word(node.loopback)),
            ("exactLoopback", word(node.exact_loopback)),
        ],
    };
    tables.rows.nodes.iter().map(row).collect()
}

fn affinity_rows(tables: &LiveTables) -> anyhow::Result<Vec<DumpRow>> {
    let now = monotonic();
    let rows = AffinityTable::new(&tables.maps)?.rows()?;
    let row = |r: &AffinityRow| DumpRow {
        key: vec![
            ("client", r.client.to_string()),
            ("SvcId", number(tables, r.owner)),
            ("name", tables.owner_text(r.owner)),
        ],
        value: vec![
            ("PodIp", r.address.to_string()),
            ("PodPort", r.port.to_string()),
            ("ageSecond", format!("{:.1}", now.saturating_sub(r.used) as f64 / 1e9)),
        ],
    };
    Ok(rows.iter().map(row).collect())
}

fn nat_rows(tables: &LiveTables) -> anyhow::Result<Vec<DumpRow>> {
    let mut rows = Vec::new();
    for socket in SocketRecordReader::new(&tables.maps)?.all()? {
        rows.push(DumpRow {
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
                ("name", tables.owner_text(socket.owner)),
            ],
        });
    }
    Ok(rows)
}

fn policy_rows(tables: &LiveTables) -> anyhow::Result<Vec<DumpRow>> {
    let (levels, now) = (BucketLevels::new(&tables.maps)?, monotonic());
    let mut rows = Vec::new();
    for (id, name) in tables.rows.names.iter().filter(|(_, name)| name.kind == NameKind::Policy) {
        let limit = tables.rows.buckets.get(&id);
        let tokens = limit.map(|limit| Ok(levels.of(id)?.tokens_at(now, *limit)));
        let tokens: Option<u64> = tokens.transpose().map_err(|e: beeline_datapath::Error| e)?;
        let sets = tables.rows.sets.values().filter(|set| set.header.policy == id);
        rows.push(DumpRow {
            key: vec![("policy", id.to_string())],
            value: vec![
                ("connectsPerSecond", or_dash(limit.map(|limit| limit.connects_per_second))),
                ("burst", or_dash(limit.map(|limit| limit.burst))),
                ("tokens", or_dash(tokens)),
                ("sets", sets.count().to_string()),
                ("members", tables.rows.selected_by(id).count().to_string()),
                ("name", name.text.clone()),
            ],
        });
    }
    Ok(rows)
}

fn member_rows(tables: &LiveTables) -> Vec<DumpRow> {
    let name = |policy| or_dash(tables.rows.names.get(policy).map(|row| row.text.clone()));
    let row = |(policy, cgroup): &(u32, u64)| DumpRow {
        key: vec![("cgroup", cgroup.to_string()), ("policy", policy.to_string())],
        value: vec![("name", name(*policy))],
    };
    tables.rows.selected.iter().map(row).collect()
}
