//! Golden cases: a behaviour is a folder that anyone can read. `cluster.yaml` (the objects), `node.yaml` (where we stand,
//! and dials), optionally `step.yaml` (what the objects become), and `plan.txt`, what must come of it. The same cases run
//! in memory, on a map that fails, and in the real kernel. `BLESS=1` writes plan.txt anew: read it before you commit it.

use beeline_cluster::{Claim, Convert, Format, Snapshot, parse};
use beeline_datapath::{Config, Door, Program, cgroup};
use beeline_model::address::parse_ip;
use beeline_model::diff::reconcile;
use beeline_model::event::{Action, Reason};
use beeline_model::fact::Refusal;
use beeline_model::name::LOCAL_CLUSTER;
use beeline_model::op::{Faulty, MapError, Maps, Memory, Op};
use beeline_model::planner::{Delta, Planner};
use beeline_model::resolve::{Dial, Verdict, resolve};
use beeline_model::row::{BackendId, Kind, Rows, Sizes};
use beeline_model::rules::{EmptyLocal, ExternalIps, LocalPolicy, NodePortAddress, Rules};
use beeline_model::table::Tables;
use beeline_model::{Address, PortName};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Node {
    node: String,
    addresses: Vec<String>,
    #[serde(default)]
    local_policy: Option<String>,
    #[serde(default)]
    empty_local: Option<String>,
    #[serde(default)]
    node_port_addresses: Option<Vec<String>>,
    #[serde(default, rename = "externalIPs")]
    external_ips: Option<Vec<String>>,
    #[serde(default)]
    service_proxy_name: Option<String>,
    /// `ADDRESS:PORT/PROTOCOL [host] [from ADDRESS]`
    #[serde(default)]
    dials: Vec<String>,
}

struct Case {
    name: String,
    dir: PathBuf,
    rules: Rules,
    dials: Vec<(String, Dial)>,
    /// The objects, and what they become.
    states: Vec<Snapshot>,
}

const SIZES: fn() -> Sizes = || Sizes::for_services(64);

fn cases() -> Vec<Case> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../cases");
    let mut dirs: Vec<PathBuf> =
        std::fs::read_dir(root).unwrap().map(|e| e.unwrap().path()).filter(|p| p.is_dir()).collect();
    dirs.sort();
    let all: Vec<Case> = dirs.into_iter().map(Case::load).collect();
    all.iter().for_each(|case| assert!(!case.dials.is_empty(), "{} dials nothing", case.name));
    all
}

impl Case {
    fn load(dir: PathBuf) -> Case {
        let name = dir.file_name().unwrap().to_string_lossy().into_owned();
        let read = |file: &str| std::fs::read(dir.join(file)).ok();
        let node = String::from_utf8(read("node.yaml").expect("node.yaml")).unwrap();
        let node: Node = serde_saphyr::from_str(&node).unwrap_or_else(|e| panic!("{name}/node.yaml: {e}"));
        let objects = |bytes: Vec<u8>| {
            let claim = Claim { proxy_name: node.service_proxy_name.clone() };
            parse(&bytes, Format::Yaml, &mut Convert::new(LOCAL_CLUSTER, claim))
        };
        let mut states = vec![objects(read("cluster.yaml").expect("cluster.yaml"))];
        states.extend(read("step.yaml").map(objects));
        let dials = node.dials.iter().map(|text| (text.clone(), dial(text))).collect();
        Case { name, rules: rules(&node), dials, states, dir }
    }
}

fn rules(node: &Node) -> Rules {
    let mut rules = Rules::for_node(&node.node);
    rules.own_addresses = node.addresses.iter().map(|a| Address::from(parse_ip(a).unwrap())).collect();
    if node.local_policy.as_deref() == Some("strict") {
        rules.local_policy = LocalPolicy::Strict;
    }
    if node.empty_local.as_deref() == Some("drop") {
        rules.empty_local = EmptyLocal::Drop;
    }
    let word = |w: &String| match w.as_str() {
        "primary" => NodePortAddress::Primary,
        "localhost" => NodePortAddress::Localhost,
        "all" => NodePortAddress::All,
        range => NodePortAddress::Range(range.parse().unwrap()),
    };
    if let Some(words) = &node.node_port_addresses {
        rules.node_port_addresses = words.iter().map(word).collect();
    }
    match node.external_ips.as_deref() {
        None => {}
        Some([off]) if off == "off" => rules.external_ips = ExternalIps::Off,
        Some(ranges) => rules.external_ips = ExternalIps::Within(ranges.iter().map(|r| r.parse().unwrap()).collect()),
    }
    rules
}

fn dial(text: &str) -> Dial {
    let mut words = text.split(' ');
    let (target, protocol) = words.next().unwrap().rsplit_once('/').unwrap();
    let (address, port) = target.rsplit_once(':').unwrap();
    let address = parse_ip(address.trim_matches(['[', ']'])).unwrap();
    let mut dial = Dial::to(Address::from(address), port.parse().unwrap(), protocol.parse().unwrap());
    while let Some(word) = words.next() {
        match word {
            "host" => dial.host = true,
            "from" => dial.source = Some(Address::from(parse_ip(words.next().unwrap()).unwrap())),
            other => panic!("{text}: {other}"),
        }
    }
    dial
}

/// A planner that has been brought from one state of the objects to the next, with the delta of the last step.
fn deltas(case: &Case) -> Vec<(Delta, Vec<Refusal>)> {
    let mut planner = Planner::new(case.rules.clone());
    let mut old = Snapshot::default();
    let mut all = Vec::new();
    let gone = Snapshot::default();
    for (i, state) in case.states.iter().chain([&gone]).enumerate() {
        beeline_cluster::diff(&old, state).into_iter().for_each(|fact| _ = planner.apply(fact));
        let delta = if i == 0 { planner.take_all() } else { planner.take() };
        let mut refusals = state.refusals.clone();
        refusals.extend(planner.refusals());
        all.push((delta, refusals));
        old = state.clone();
    }
    all
}

// ---- what a plan looks like ----

fn backends(rows: &Rows, ids: &[BackendId]) -> Vec<String> {
    let mut all: Vec<_> = ids.iter().filter_map(|id| rows.backends.get(*id)).map(|b| (b.address, b.port)).collect();
    all.sort();
    all.dedup();
    all.iter().map(|(a, p)| std::net::SocketAddr::new(a.ip(), *p).to_string()).collect()
}

fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::ClusterIp => "clusterIP",
        Kind::LoadBalancer => "loadBalancer",
        Kind::ExternalIp => "externalIP",
        Kind::Virtual => "virtual",
        Kind::NodePort => "nodePort",
    }
}

fn frontends(rows: &Rows) -> String {
    let mut lines = Vec::new();
    for (key, row) in rows.frontends.iter().filter(|(key, _)| key.protocol.is_some()) {
        let set = rows.sets.get(row.set).expect("a frontend leads to a set");
        let owner = PortName::from_text(&rows.names[set.owner].text).expect("a name");
        let affinity =
            if set.header.affinity > 0 { format!(" affinity {}", set.header.affinity) } else { String::new() };
        let members = backends(rows, rows.members(set));
        let becomes = if members.is_empty() { "nothing".to_owned() } else { members.join(" ") };
        let empty =
            if members.is_empty() { format!(" ({:?})", set.when_empty()).to_lowercase() } else { String::new() };
        lines.push((*key, format!("{key:?} {} {owner} -> {becomes}{empty}{affinity}\n", kind(row.kind))));
    }
    lines.sort();
    lines.into_iter().map(|(_, line)| line).collect()
}

fn verdict(rows: &Rows, verdict: &Verdict) -> String {
    match (verdict.action, verdict.reason) {
        (Action::Resolved, _) => backends(rows, &verdict.backends).join(" "),
        (Action::Refused, reason) => format!("refused: {reason:?}"),
        (Action::Untouched, Reason::None) => "untouched".into(),
        (Action::Untouched, reason) => format!("untouched: {reason:?}"),
    }
}

fn describe(case: &Case, rows: &Rows, refusals: &[Refusal]) -> String {
    let mut text = frontends(rows);
    text.extend(rows.nodes.iter().map(|(a, n)| {
        let word = |is: bool, word: &'static str| if is { word } else { "" };
        format!("node {a}{}{}{}\n", word(n.own, " own"), word(n.loopback, " host only"), word(n.alone, " alone"))
    }));
    for (name, dial) in &case.dials {
        text += &format!("dial {name} => {}\n", verdict(rows, &resolve(rows, dial, case.rules.empty_local)));
    }
    let mut said: Vec<String> =
        refusals.iter().map(|r| format!("refused {} {}: {}\n", r.subject, r.reason, r.message)).collect();
    said.sort();
    text.extend(said);
    text
}

// ---- in memory, against plan.txt ----

/// Whoever dials a frontend, not only those that the case lists, gets what its line in plan.txt says.
fn check_frontends(case: &Case, rows: &Rows) {
    for (key, row) in rows.frontends.iter().filter(|(key, _)| !key.is_node_port_row()) {
        let Some((protocol, set)) = key.protocol.zip(rows.sets.get(row.set)) else { continue };
        let source = rows.sources_of(set.owner).find(|net| net.addr().is_ipv4() == key.address.ip().is_ipv4());
        let source = source.map(|net| Address::from(net.addr()));
        let dial = Dial { source, ..Dial::to(key.address, key.port, protocol) };
        let verdict = resolve(rows, &dial, case.rules.empty_local);
        let wanted = backends(rows, rows.members(set));
        assert_eq!(backends(rows, &verdict.backends), wanted, "{} {key:?}", case.name);
        assert_eq!(verdict.action == Action::Resolved, !wanted.is_empty(), "{} {key:?}", case.name);
    }
}

/// All objects are gone: what stays is our own node, and ranges, which only ever widen.
fn check_empty(case: &Case, tables: &mut Tables, memory: &mut Memory) {
    let rows = tables.rows().clone();
    let left =
        Rows { ranges_v4: [0; 4], ranges_v6: [0; 4], slots: Vec::new(), nodes: Default::default(), ..rows.clone() };
    assert_eq!(left, Rows::default(), "{}: rows stay", case.name);
    assert!(rows.nodes.values().all(|node| node.own), "{}: {:?}", case.name, rows.nodes);
    tables.recycle(memory).unwrap();
    assert_eq!(tables.quarantined(), 0, "{}", case.name);
    tables.audit(SIZES()).unwrap_or_else(|problem| panic!("{}: {problem}", case.name));
}

#[test]
fn plans_are_what_they_were_blessed_to_be() {
    let (mut wrong, mut dials) = (Vec::new(), 0);
    let all = cases();
    assert!(all.len() >= 60, "only {} cases", all.len());
    for case in &all {
        let (mut tables, mut memory) = (Tables::new(SIZES()), Memory::new(SIZES()));
        let mut text = String::new();
        let steps = deltas(case);
        for (i, (delta, refusals)) in steps.iter().enumerate() {
            let outcome = reconcile(&mut tables, &mut memory, delta, i == 0);
            assert!(outcome.is_clean(), "{}: {outcome:?}", case.name);
            // Rows that nothing leads to stay as they are until their id is used again.
            let mut live = memory.rows.clone();
            live.sets.retain(|id, _| tables.rows().sets.contains(id));
            assert!(tables.matches(&live), "{}: the mirror differs", case.name);
            tables.audit(SIZES()).unwrap_or_else(|problem| panic!("{}: {problem}", case.name));
            check_frontends(case, &memory.rows);
            if i + 1 == steps.len() {
                break;
            }
            text += if i == 0 { "" } else { "\nafter the step:\n" };
            text += &describe(case, &memory.rows, refusals);
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
        "{} of {} cases differ (BLESS=1 writes them anew)\n{}",
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

/// A rule without a case, or a case without a rule, would go unseen.
#[test]
fn every_case_stands_beside_its_rule() {
    let readme = include_str!("../../../cases/README.md");
    let cells = readme.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |")?.rsplit_once(" | "));
    let listed: BTreeSet<&str> =
        cells.flat_map(|(_, cases)| cases.split(", ")).filter(|c| !c.starts_with('(') && *c != "cases").collect();
    let all = cases();
    let have: BTreeSet<&str> = all.iter().map(|case| case.name.as_str()).collect();
    assert_eq!(listed, have);
}

#[test]
fn a_restart_from_the_dump_writes_nothing() {
    for case in cases() {
        let (mut tables, mut memory) = (Tables::new(SIZES()), Memory::new(SIZES()));
        let delta = &deltas(&case)[0].0;
        reconcile(&mut tables, &mut memory, delta, true);
        let mut again = Tables::restore(memory.dump().unwrap(), SIZES());
        let outcome = reconcile(&mut again, &mut memory, delta, true);
        assert_eq!((outcome.ops, outcome.is_clean()), (0, true), "{}", case.name);
    }
}

// ---- on a map that fails ----

type Answer = (Action, Reason, BTreeSet<String>);

fn answers(case: &Case, rows: &Rows) -> Vec<Answer> {
    let ask = |dial: &Dial| {
        let v = resolve(rows, dial, case.rules.empty_local);
        (v.action, v.reason, backends(rows, &v.backends).into_iter().collect())
    };
    case.dials.iter().map(|(_, dial)| ask(dial)).collect()
}

/// Writes reach the memory map and every dial of the case is made after each of them.
struct Watched<'a> {
    case: &'a Case,
    memory: Memory,
    allowed: [Vec<Answer>; 2],
    looks: usize,
}

impl Maps for Watched<'_> {
    fn write(&mut self, op: &Op) -> Result<(), MapError> {
        self.memory.write(op)?;
        for (i, (action, reason, backends)) in answers(self.case, &self.memory.rows).into_iter().enumerate() {
            let [old, new] = [&self.allowed[0][i], &self.allowed[1][i]];
            let said = [old, new].iter().any(|a| (a.0, a.1) == (action, reason));
            let reached = backends.iter().all(|b| old.2.contains(b) || new.2.contains(b));
            let dial = &self.case.dials[i].0;
            assert!(
                said && reached,
                "{} {dial}: {action:?} {reason:?} {backends:?} after {op:?}\nold {old:?}\nnew {new:?}",
                self.case.name
            );
            self.looks += 1;
        }
        Ok(())
    }

    fn dump(&self) -> Result<Rows, MapError> {
        self.memory.dump()
    }

    fn grace(&mut self) -> Result<(), MapError> {
        Ok(())
    }

    fn sizes(&self) -> Sizes {
        self.memory.sizes
    }
}

/// Runs all steps of a case on a map that fails as told, trying again until all is written; returns writes and looks.
fn run_faulty(case: &Case, fails: impl FnMut(u64) -> bool + Send + Clone + 'static) -> (u64, usize) {
    let steps = deltas(case);
    let (mut clean_tables, mut clean) = (Tables::new(SIZES()), Memory::new(SIZES()));
    let mut tables = Tables::new(SIZES());
    let allowed = [answers(case, &clean.rows), Vec::new()];
    let watched = Watched { case, memory: Memory::new(SIZES()), allowed, looks: 0 };
    let mut faulty = Faulty::new(watched, fails);
    for (i, (delta, _)) in steps.iter().enumerate() {
        reconcile(&mut clean_tables, &mut clean, delta, i == 0);
        faulty.inner.allowed[1] = answers(case, &clean.rows);
        let mut tries = 0;
        while !reconcile(&mut tables, &mut faulty, delta, i == 0).is_clean() {
            tries += 1;
            assert!(tries < 200, "{}: never done", case.name);
        }
        assert_eq!(answers(case, &faulty.inner.memory.rows), faulty.inner.allowed[1], "{}", case.name);
        assert_eq!(frontends(&faulty.inner.memory.rows), frontends(&clean.rows), "{}", case.name);
        faulty.inner.allowed[0] = faulty.inner.allowed[1].clone();
    }
    (faulty.writes, faulty.inner.looks)
}

#[test]
fn a_write_that_fails_leaves_the_old_verdict_or_the_new_one() {
    let (mut runs, mut looks) = (0, 0);
    for case in cases() {
        let (writes, seen) = run_faulty(&case, |_| false);
        looks += seen;
        for k in 1..=writes {
            looks += run_faulty(&case, move |n| n == k).1;
            runs += 1;
        }
        for seed in 1..=20u64 {
            let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            looks += run_faulty(&case, move |_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state % 10 == 0
            })
            .1;
            runs += 1;
        }
    }
    println!("{runs} runs with failures, {looks} dials between writes, 0 of them neither old nor new");
}

// ---- in the kernel ----

struct Ground {
    cgroup: PathBuf,
    pins: PathBuf,
}

impl Ground {
    fn new(tag: &str) -> Ground {
        let name = format!("beeline-cases-{}-{tag}", std::process::id());
        let cgroup = cgroup::root().expect("cgroup2: run `make setup`").join(&name);
        std::fs::create_dir(&cgroup).expect("root, and a cgroup2 that can be written");
        Ground { cgroup, pins: Path::new("/sys/fs/bpf").join(name) }
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        let _ = beeline_datapath::program::cleanup(&self.pins);
        let _ = std::fs::remove_dir(&self.cgroup);
    }
}

fn ask_kernel(case: &Case, rows: &Rows, door: &Door) -> usize {
    let mut asked = 0;
    for (text, dial) in &case.dials {
        let twin = resolve(rows, dial, case.rules.empty_local);
        let mut met = BTreeSet::new();
        for i in 0..64u32 {
            let answer = door.ask(dial, i.wrapping_mul(0x0800_0000).wrapping_add(i), u64::from(i) + 1, 1).unwrap();
            assert_eq!((answer.action, answer.reason), (twin.action, twin.reason), "{} {text}", case.name);
            met.extend(answer.chosen.map(|(a, p)| std::net::SocketAddr::new(a.ip(), p).to_string()));
            asked += 1;
        }
        let wanted: BTreeSet<String> = backends(rows, &twin.backends).into_iter().collect();
        assert!(
            met.is_subset(&wanted) && met.is_empty() == wanted.is_empty(),
            "{} {text}: {met:?} of {wanted:?}",
            case.name
        );
        if wanted.len() <= 8 {
            assert_eq!(met, wanted, "{} {text}: a backend is never picked", case.name);
        }
    }
    asked
}

#[test]
fn the_kernel_decides_as_planned() {
    let mut asked = 0;
    for empty_local in [EmptyLocal::Refuse, EmptyLocal::Drop] {
        let ground = Ground::new(if empty_local == EmptyLocal::Drop { "drop" } else { "refuse" });
        let config =
            Config { pin_dir: ground.pins.clone(), cgroup: ground.cgroup.clone(), sizes: SIZES(), empty_local };
        let program = Program::open(config).unwrap();
        let (mut kernel, door) = (program.kernel().unwrap(), program.door().unwrap());
        let mut tables = Tables::new(SIZES());
        for case in cases().iter().filter(|c| c.rules.empty_local == empty_local) {
            for (delta, _) in deltas(case) {
                let outcome = reconcile(&mut tables, &mut kernel, &delta, true);
                assert!(outcome.is_clean(), "{}: {outcome:?}", case.name);
                let rows = kernel.dump().unwrap();
                assert!(tables.matches(&rows), "{}: the kernel holds something else", case.name);
                asked += ask_kernel(case, &rows, &door);
            }
            tables.recycle(&mut kernel).unwrap();
        }
    }
    println!("{asked} dials asked of the kernel");
    assert!(asked > 5000);
}
