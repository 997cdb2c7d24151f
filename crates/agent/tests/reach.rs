//! Route lookups and probes in network namespaces: a host outside the cluster that reaches pods by a static route, by a
//! default route only, or not at all; routes that are added and removed; firewalls that drop or reject.
//!
//!   outside 172.31.0.1 ── node-1 172.31.0.11 ── pod-a 10.244.1.2, fd00:244::1:2

use beeline_agent::reach::{
    BlockReason, ProbeRate, ProbeResult, ReachQuery, ReachTarget, ReachUpdate, RouteMatch, RouteReader, probe, run,
};
use beeline_harness::TestNetwork;
use beeline_model::Address;
use beeline_model::reach::{PodGroup, Reachability};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};

const DEADLINE: Duration = Duration::from_secs(60);
const TIMEOUT: Duration = Duration::from_secs(1);
/// Routers limit the rate of ICMP errors: within this time the segment is sent a second and a third time.
const ICMP_TIMEOUT: Duration = Duration::from_secs(5);

fn block_on<T: Send>(network: &TestNetwork, work: impl AsyncFnOnce(&TestNetwork) -> T + Send) -> T {
    let inside = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(work(network))
    };
    network.outside.run_in(inside).unwrap()
}

fn address(text: &str) -> Address {
    text.parse::<IpAddr>().unwrap().into()
}

fn ip(network: &TestNetwork, lines: &str) {
    network.outside.namespace.ip(lines).unwrap();
}

/// Runs nft on the node, between the host outside and the pod.
fn nft(network: &TestNetwork, rules: &str) {
    let node = network.node().namespace.name();
    let output = std::process::Command::new("ip").args(["netns", "exec", node, "nft", rules]).output().unwrap();
    assert!(output.status.success(), "nft {rules}: {}", String::from_utf8_lossy(&output.stderr));
}

fn firewall(network: &TestNetwork, verdict: &str) {
    nft(network, "flush ruleset");
    nft(network, "add table inet test");
    nft(network, "add chain inet test forward { type filter hook forward priority 0; }");
    nft(network, &format!("add rule inet test forward tcp dport 8080 {verdict}"));
}

fn specific(text: &str) -> Option<RouteMatch> {
    Some(RouteMatch::Specific(text.parse().unwrap()))
}

#[test]
fn the_route_that_the_kernel_would_use_is_found() {
    let network = TestNetwork::new(1).unwrap();
    block_on(&network, async |network: &TestNetwork| {
        let routes = RouteReader::open().unwrap();
        let route = async |text: &str| routes.look_up(address(text)).await;
        assert_eq!(route("10.244.1.2").await, Some(RouteMatch::Blocked(BlockReason::NoRoute)));
        assert_eq!(route("fd00:244::1:2").await, Some(RouteMatch::Blocked(BlockReason::NoRoute)));
        assert_eq!(route("172.31.0.11").await, specific("172.31.0.0/24"), "a network of the host's own link");
        ip(network, "route add default via 172.31.0.11\nroute add default via fd00:31::11\n");
        assert_eq!(
            (route("10.244.1.2").await, route("fd00:244::1:2").await),
            (Some(RouteMatch::Default), Some(RouteMatch::Default))
        );
        ip(network, "route add 10.244.0.0/16 via 172.31.0.11\nroute add fd00:244::/64 via fd00:31::11\n");
        assert_eq!(
            (route("10.244.1.2").await, route("10.245.1.2").await),
            (specific("10.244.0.0/16"), Some(RouteMatch::Default))
        );
        assert_eq!(route("fd00:244::1:2").await, specific("fd00:244::/64"));
        for (kind, reason) in [
            ("blackhole", BlockReason::Blackhole),
            ("unreachable", BlockReason::Unreachable),
            ("prohibit", BlockReason::Prohibit),
        ] {
            ip(network, &format!("route add {kind} 10.244.1.0/24\nroute add {kind} fd00:244::1:0/112\n"));
            assert_eq!(route("10.244.1.2").await, Some(RouteMatch::Blocked(reason)), "{kind}");
            assert_eq!(route("fd00:244::1:2").await, Some(RouteMatch::Blocked(reason)), "{kind}");
            ip(network, &format!("route del {kind} 10.244.1.0/24\nroute del {kind} fd00:244::1:0/112\n"));
        }
        // A route in another table counts only if a rule leads to that table.
        ip(network, "route add 10.244.1.0/24 via 172.31.0.11 table 77\n");
        assert_eq!(route("10.244.1.2").await, specific("10.244.0.0/16"), "no rule leads to the table");
        ip(network, "rule add to 10.244.0.0/16 table 77\n");
        assert_eq!(route("10.244.1.2").await, specific("10.244.1.0/24"));
        // A split default route, as VPN clients add it, counts as a default route.
        ip(network, "route add 0.0.0.0/1 via 172.31.0.11\nroute add 128.0.0.0/1 via 172.31.0.11\n");
        assert_eq!(route("192.0.2.1").await, Some(RouteMatch::Default));
    });
}

/// A host with thousands of routes: a change costs a few lookups, whatever the number of routes.
#[test]
fn a_changed_route_costs_a_few_lookups_and_gives_the_same_result_as_a_lookup_of_all() {
    let network = TestNetwork::new(1).unwrap();
    let many = |verb: &str| {
        let line = |n: u32| format!("route {verb} 10.{}.{}.0/24 via 172.31.0.11\n", 100 + n / 250, n % 250);
        (0..2_000).map(line).collect::<String>()
    };
    ip(&network, &many("add"));
    block_on(&network, async |network: &TestNetwork| {
        let mut routes = RouteReader::open().unwrap();
        let first = routes.specific().await;
        let all = routes.lookups();
        assert!(all >= 2_000 && first.len() >= 2_000, "{all} lookups for {} routes", first.len());
        let changes = [
            "route add 10.96.0.0/16 via 172.31.0.11",
            "route add blackhole 10.96.7.0/24",
            "route add fd00:96::/112 via fd00:31::11",
            "route del blackhole 10.96.7.0/24",
            "route replace 10.100.3.0/24 via 172.31.0.12",
            "route del 10.96.0.0/16 via 172.31.0.11",
            "route del 10.100.4.0/24 via 172.31.0.11",
        ];
        for change in changes {
            while tokio::time::timeout(Duration::from_millis(50), routes.changed()).await.is_ok() {}
            ip(network, &format!("{change}\n"));
            let noticed = tokio::time::timeout(DEADLINE, routes.changed()).await.unwrap().unwrap();
            assert!(!noticed.any_route && noticed.destinations.len() == 1, "{change}: {noticed:?}");
            let before = routes.lookups();
            let updated = routes.update_specific(&noticed.destinations).await;
            let cost = routes.lookups() - before;
            let fresh = RouteReader::open().unwrap().specific().await;
            println!("{change}: {cost} lookups of {all}");
            assert_eq!(updated, fresh, "{change}");
            assert!(cost <= 12, "{change}: {cost} lookups");
        }
    });
}

#[test]
fn service_addresses_that_the_network_routes_are_found() {
    let network = TestNetwork::new(1).unwrap();
    block_on(&network, async |network: &TestNetwork| {
        let mut routes = RouteReader::open().unwrap();
        ip(network, "route add default via 172.31.0.11\nroute add 10.96.0.0/16 via 172.31.0.11\n");
        ip(network, "route add blackhole 10.96.7.0/24\nroute add fd00:96::/112 via fd00:31::11\n");
        let specific = routes.specific().await;
        let routed = |text: &str| specific.iter().any(|net| net.contains(&text.parse::<IpAddr>().unwrap()));
        assert!(
            routed("10.96.0.1") && routed("10.96.8.1") && routed("fd00:96::1") && routed("172.31.0.11"),
            "{specific:?}"
        );
        assert!(!routed("10.96.7.1") && !routed("10.97.0.1") && !routed("192.0.2.1"), "{specific:?}");
    });
}

#[test]
fn a_reset_is_an_answer_and_an_icmp_error_is_not() {
    let network = TestNetwork::new(1).unwrap();
    let _server = network.pod(0).serve(8080).unwrap();
    ip(&network, "route add default via 172.31.0.11\nroute add default via fd00:31::11\n");
    block_on(&network, async |network: &TestNetwork| {
        for pod in [IpAddr::from(network.pod(0).v4), IpAddr::from(network.pod(0).v6)] {
            let (open, closed) = (SocketAddr::new(pod, 8080), SocketAddr::new(pod, 8081));
            assert_eq!(probe(open, TIMEOUT).await, ProbeResult::Connected);
            assert_eq!(probe(closed, TIMEOUT).await, ProbeResult::Reset);
            firewall(network, "drop");
            let result = probe(open, TIMEOUT).await;
            assert!(
                matches!(&result, ProbeResult::NoAnswer(error) if error.starts_with("no answer within")),
                "{open}: {result:?}"
            );
            // The default of many firewalls. An application gets the same error as for a reset.
            firewall(network, "reject with icmpx type port-unreachable");
            let result = probe(open, ICMP_TIMEOUT).await;
            assert!(matches!(&result, ProbeResult::NoAnswer(error) if error.contains("ICMP")), "{open}: {result:?}");
            for kind in ["host-unreachable", "admin-prohibited", "no-route"] {
                firewall(network, &format!("reject with icmpx type {kind}"));
                let result = probe(open, ICMP_TIMEOUT).await;
                assert!(matches!(result, ProbeResult::NoAnswer(_)), "{kind}: {result:?}");
            }
            firewall(network, "reject with tcp reset");
            assert_eq!(
                probe(open, TIMEOUT).await,
                ProbeResult::Reset,
                "a reset proves that packets come back, also if a firewall sent it"
            );
            nft(network, "flush ruleset");
            assert_eq!(probe(open, TIMEOUT).await, ProbeResult::Connected);
        }
    });
}

/// A running reach task, and its last update.
struct ReachTask {
    updates: mpsc::UnboundedReceiver<ReachUpdate>,
    last: ReachUpdate,
    query: watch::Sender<ReachQuery>,
    _tasks: tokio::task::JoinSet<()>,
}

fn group(prefix: &str) -> PodGroup {
    PodGroup { cluster: "far".into(), node: Some("node-1".into()), prefix: prefix.parse().unwrap() }
}

impl ReachTask {
    fn start(network: &TestNetwork) -> ReachTask {
        let pod = network.pod(0);
        let query: Arc<[ReachTarget]> = [
            (group("10.244.1.0/24"), vec![(pod.v4.into(), 8080)]),
            (group("fd00:244::/64"), vec![(pod.v6.into(), 8080)]),
        ]
        .map(|(group, ready): (PodGroup, Vec<(IpAddr, u16)>)| {
            (group, ready.into_iter().map(|(ip, port)| (Address::from(ip), port)).collect())
        })
        .into();
        let (query, receiver) = watch::channel(Some(query));
        let (sender, updates) = mpsc::unbounded_channel();
        let rate = ProbeRate { interval: Duration::from_secs(2), per_second: 50 };
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(async move { run(rate, receiver, move |update| sender.send(update).is_ok()).await.unwrap() });
        ReachTask { updates, last: ReachUpdate::default(), query, _tasks: tasks }
    }

    async fn wait_until(&mut self, what: &str, found: Reachability) {
        let start = Instant::now();
        let matches =
            |update: &ReachUpdate| update.findings.len() == 2 && update.findings.iter().all(|one| one.found == found);
        while !matches(&self.last) {
            let left =
                DEADLINE.checked_sub(start.elapsed()).unwrap_or_else(|| panic!("timeout: {what}: {:?}", self.last));
            if let Ok(update) = tokio::time::timeout(left, self.updates.recv()).await {
                self.last = update.expect("the task runs");
            }
        }
        let both = [group("10.244.1.0/24"), group("fd00:244::/64")].map(|group| self.last.reach.of(&group));
        assert_eq!(both, [found; 2], "the input of the plan is the same");
    }

    fn evidence(&self) -> String {
        self.last.findings.iter().map(|one| one.evidence.clone()).collect::<Vec<_>>().join("; ")
    }
}

#[test]
fn the_result_follows_routes_and_firewalls() {
    let network = TestNetwork::new(1).unwrap();
    let _server = network.pod(0).serve(8080).unwrap();
    block_on(&network, async |network: &TestNetwork| {
        let mut task = ReachTask::start(network);
        task.wait_until("no route", Reachability::Node).await;
        assert!(task.evidence().contains("no route"), "{}", task.evidence());
        ip(network, "route add 10.244.0.0/16 via 172.31.0.11\nroute add fd00:244::/64 via fd00:31::11\n");
        task.wait_until("a static route", Reachability::Direct).await;
        assert!(task.evidence().contains("route to 10.244.0.0/16"), "{}", task.evidence());
        ip(network, "route del 10.244.0.0/16\nroute del fd00:244::/64\n");
        task.wait_until("the route was removed", Reachability::Node).await;
        ip(network, "route add default via 172.31.0.11\nroute add default via fd00:31::11\n");
        task.wait_until("the pod answers through the default route", Reachability::Direct).await;
        assert!(task.evidence().contains("10.244.1.2:8080 answered"), "{}", task.evidence());
        firewall(network, "drop");
        task.wait_until("the firewall drops", Reachability::Node).await;
        assert!(
            task.evidence().contains("3 probes without an answer") && task.evidence().contains("no answer within"),
            "{}",
            task.evidence()
        );
        nft(network, "flush ruleset");
        task.wait_until("the firewall was removed", Reachability::Direct).await;
        firewall(network, "reject with icmpx type admin-prohibited");
        task.wait_until("the firewall rejects", Reachability::Node).await;
        // A specific route counts without a probe.
        ip(network, "route add 10.244.0.0/16 via 172.31.0.11\nroute add fd00:244::/64 via fd00:31::11\n");
        task.wait_until("a specific route", Reachability::Direct).await;
        ip(network, "route add blackhole 10.244.1.0/24\nroute add blackhole fd00:244::1:0/112\n");
        task.wait_until("a blackhole inside the route", Reachability::Node).await;
        assert!(task.evidence().contains("blackhole"), "{}", task.evidence());
        task.query.send_replace(Some(Arc::new([])));
        let start = Instant::now();
        while !task.last.findings.is_empty() {
            assert!(start.elapsed() < DEADLINE, "the query is empty: {:?}", task.last.findings);
            task.last = tokio::time::timeout(DEADLINE, task.updates.recv()).await.unwrap().unwrap();
        }
    });
}
