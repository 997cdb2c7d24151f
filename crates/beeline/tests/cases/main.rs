//! Golden cases, described in `cases/README.md`. Each case is a directory with `cluster.yaml` (the objects), `node.yaml`
//! (the host role, options and dials), optionally `step.yaml` (the objects after a change), and the expected `plan.txt`. The
//! cases run in memory, on maps with failing writes, and in the kernel. `BLESS=1` rewrites `plan.txt`.

mod case;
mod faulty_maps;
mod in_kernel;
mod plan_text;

use beeline_cluster::{Converter, ManifestFormat, ServiceFilter, Snapshot, parse_manifests};
use beeline_datapath::{Config, Program, TestResolver, cgroup};
use beeline_harness::test_seed;
use beeline_model::address::parse_ip;
use beeline_model::bucket::TokenBuckets;
use beeline_model::cluster::order::{ClusterOrder, Ranges};
use beeline_model::cluster::{ClusterRules, PodAccess};
use beeline_model::diff::reconcile;
use beeline_model::event::{Action, Reason};
use beeline_model::name::LOCAL_CLUSTER;
use beeline_model::object::{AddressType, PodName};
use beeline_model::op::{FaultyMaps, MapError, Maps, MemoryMaps, Op};
use beeline_model::plan::policy::PolicyApplicability;
use beeline_model::planner::policy_state::{FrontendHolder, PolicyState};
use beeline_model::planner::{Delta, Planner};
use beeline_model::policy::{PolicyKind, PolicyName};
use beeline_model::publish::{PodProblem, Publisher, UnknownNamespace};
use beeline_model::reach::{PodGroup, Reach, Reachability};
use beeline_model::refusal::Refusal;
use beeline_model::resolve::{Dial, Verdict, resolve, resolve_with};
use beeline_model::row::{BackendId, FrontendKey, FrontendKind, Rows, SET_NONE, SetId, SetRow, Sizes};
use beeline_model::rules::{ExternalIps, HostRole, LocalTrafficPolicy, NoLocalEndpointAction, NodePortAddress, Rules};
use beeline_model::table::Tables;
use beeline_model::{Address, Name, PortName};
use case::{Case, SIZES, cases, cgroup_of};
use plan_text::*;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The verdict of the last of several equal dials at one instant.
pub fn decide(rows: &Rows, dial: &Dial, before: usize, no_local_endpoint_action: NoLocalEndpointAction) -> Verdict {
    let (mut buckets, dial) = (TokenBuckets::default(), Dial { now: 1, ..dial.clone() });
    (0..before).for_each(|_| drop(resolve_with(rows, &dial, no_local_endpoint_action, &mut buckets)));
    resolve_with(rows, &dial, no_local_endpoint_action, &mut buckets)
}

/// The planner's delta and the report of each step. The last step removes all objects.
pub fn deltas(case: &Case) -> Vec<(Delta, Vec<String>)> {
    let mut planner = Planner::new(case.rules.clone());
    // An agent without a controller publishes policy slices for itself.
    let mut publisher = Publisher::new(UnknownNamespace::Unlabelled);
    let mut old = Snapshot::default();
    let mut all = Vec::new();
    let empty = Snapshot::default();
    for (i, state) in case.states.iter().chain([&empty]).enumerate() {
        set_context(case, i, &mut planner);
        for change in beeline_cluster::diff(&old, state) {
            publisher.apply(&change);
            planner.apply(change);
        }
        publisher.take_changes().into_iter().for_each(|change| _ = planner.apply(change));
        set_cgroups(case, state, &mut planner);
        let delta = if i == 0 { planner.take_full_delta() } else { planner.take_delta() };
        let mut refusals = state.refusals.clone();
        refusals.extend(planner.refusals());
        let mut report = describe_refusals(&refusals);
        report.extend(planner.policies().iter().map(describe_policy));
        report.extend(describe_skipped_pods(state, &publisher));
        all.push((delta, report));
        old = state.clone();
    }
    all
}

/// Sets the context of a step. The last step, which only removes the objects, keeps the context.
fn set_context(case: &Case, step: usize, planner: &mut Planner) {
    let Some(context) = case.contexts.get(step) else { return };
    let clusters = context.clusters(case.rules.host_role);
    let removed = planner.rules().clusters.iter().map(|cluster| cluster.name.clone());
    let removed: Vec<Name> = removed.filter(|name| !clusters.iter().any(|cluster| cluster.name == *name)).collect();
    planner.set_clusters(clusters);
    removed.iter().for_each(|name| _ = planner.remove_cluster(name));
    planner.set_reach(context.reach());
    planner.set_views(context.views());
}

/// Sets the cgroups of the pods, which the agent finds by their uid.
fn set_cgroups(case: &Case, state: &Snapshot, planner: &mut Planner) {
    for pod in state.pods.values().filter(|pod| !pod.uid.is_empty()) {
        let name = format!("{}/{}", pod.name.namespace, pod.name.name);
        if !case.without_cgroup.contains(&name) {
            planner.set_cgroup(&pod.uid, Some(cgroup_of(&name)));
        }
    }
}

/// Checks that a dial to every frontend, not only the listed ones, gets the backends of its line in plan.txt.
fn check_frontends(case: &Case, rows: &Rows) {
    for (key, row) in rows.frontends.iter().filter(|(key, _)| !key.is_node_port_row()) {
        let Some((protocol, set)) = key.protocol.zip(rows.sets.get(row.set)) else { continue };
        let source = rows.sources_of(set.owner).find(|net| net.addr().is_ipv4() == key.address.ip().is_ipv4());
        let source = source.map(|net| Address::from(net.addr()));
        let dial = Dial { source, view: key.view, ..Dial::to(key.address, key.port, protocol) };
        let verdict = resolve(rows, &dial, case.rules.no_local_endpoint_action);
        let mut sets = chain(rows, row.set).map(|set| backends(rows, rows.members(set)));
        let wanted = sets.find(|members| !members.is_empty()).unwrap_or_default();
        assert_eq!(backends(rows, &verdict.backends), wanted, "{} {key:?}", case.name);
        assert_eq!(verdict.action == Action::Resolved, !wanted.is_empty(), "{} {key:?}", case.name);
    }
}

/// Checks the tables after all objects were removed. The own node stays, and the ranges, which never become smaller.
fn check_empty(case: &Case, tables: &mut Tables, memory: &mut MemoryMaps) {
    let rows = tables.rows().clone();
    let left =
        Rows { ranges_v4: [0; 4], ranges_v6: [0; 4], slots: Vec::new(), nodes: Default::default(), ..rows.clone() };
    assert_eq!(left, Rows::default(), "{}: rows are left", case.name);
    assert!(rows.nodes.values().all(|node| node.own), "{}: {:?}", case.name, rows.nodes);
    tables.recycle(memory).unwrap();
    assert_eq!(tables.quarantined(), 0, "{}", case.name);
    tables.audit(SIZES()).unwrap_or_else(|problem| panic!("{}: {problem}", case.name));
}

#[test]
fn plans_match_plan_txt() {
    let (mut wrong, mut dials) = (Vec::new(), 0);
    let all = cases();
    assert!(all.len() >= 60, "only {} cases", all.len());
    for case in &all {
        let (mut tables, mut memory) = (Tables::new(SIZES()), MemoryMaps::new(SIZES()));
        let mut text = String::new();
        let steps = deltas(case);
        for (i, (delta, report)) in steps.iter().enumerate() {
            let outcome = reconcile(&mut tables, &mut memory, delta, i == 0);
            assert!(outcome.is_clean(), "{}: {outcome:?}", case.name);
            // Rows that are not referenced stay until their id is used again.
            let mut live = memory.rows.clone();
            live.sets.retain(|id, _| tables.rows().sets.contains(id));
            assert!(tables.matches(&live), "{}: the tables and the maps differ", case.name);
            tables.audit(SIZES()).unwrap_or_else(|problem| panic!("{}: {problem}", case.name));
            check_frontends(case, &memory.rows);
            if i + 1 == steps.len() {
                break;
            }
            text += if i == 0 { "" } else { "\nafter the step:\n" };
            text += &describe(case, &memory.rows, report);
            dials += case.dials.len();
        }
        check_empty(case, &mut tables, &mut memory);
        let path = case.dir.join("plan.txt");
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        let blessed = std::fs::read_to_string(&path).unwrap_or_default();
        if blessed != text {
            wrong.push(format!("{}:\n{}", case.name, differences(&blessed, &text)));
        }
    }
    println!("{} cases, {dials} dials", all.len());
    assert!(
        wrong.is_empty(),
        "{} of {} cases differ (BLESS=1 rewrites plan.txt)\n{}",
        wrong.len(),
        all.len(),
        wrong.join("\n")
    );
}

fn differences(blessed: &str, now: &str) -> String {
    let missing = |from: &str, other: &str, sign: &str| -> String {
        from.lines().filter(|line| !other.lines().any(|l| l == *line)).map(|line| format!("{sign} {line}\n")).collect()
    };
    let lines = missing(blessed, now, "-") + &missing(now, blessed, "+");
    if lines.is_empty() { "the same lines in another order\n".into() } else { lines }
}

/// Every case is listed beside its rule in cases/README.md, and every listed case exists.
#[test]
fn every_case_is_listed_with_its_rule() {
    let readme = include_str!("../../../../cases/README.md");
    let cells = readme.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |")?.rsplit_once(" | "));
    let listed: BTreeSet<&str> =
        cells.flat_map(|(_, cases)| cases.split(", ")).filter(|c| !c.starts_with('(') && *c != "cases").collect();
    let all = cases();
    let existing: BTreeSet<&str> = all.iter().map(|case| case.name.as_str()).collect();
    assert_eq!(listed, existing);
}

#[test]
fn a_restart_from_the_dump_writes_nothing() {
    for case in cases() {
        let (mut tables, mut memory) = (Tables::new(SIZES()), MemoryMaps::new(SIZES()));
        let delta = &deltas(&case)[0].0;
        reconcile(&mut tables, &mut memory, delta, true);
        let mut again = Tables::restore(memory.dump().unwrap(), SIZES());
        let outcome = reconcile(&mut again, &mut memory, delta, true);
        assert_eq!((outcome.ops, outcome.is_clean()), (0, true), "{}", case.name);
    }
}
