//! The way to pods, found out in network namespaces of the test's own: an outside host that reaches them by a static
//! route, by nothing but a default route, or not at all; routes that come and go; firewalls that drop and that reject.
//!
//!   outside 172.31.0.1 ── node-1 172.31.0.11 ── pod-a 10.244.1.2, fd00:244::1:2

use beeline_agent::reach::{Answer, Asked, Bar, News, Pace, Question, Routes, Way, knock, run};
use beeline_harness::Lab;
use beeline_model::Address;
use beeline_model::reach::{Found, Group};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};

const PATIENCE: Duration = Duration::from_secs(60);
const SILENCE: Duration = Duration::from_secs(1);
/// Routers say little at a time: a second and a third segment are sent by then.
const AGAIN: Duration = Duration::from_secs(5);

fn block_on<T: Send>(lab: &Lab, work: impl AsyncFnOnce(&Lab) -> T + Send) -> T {
    let inside = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(work(lab))
    };
    lab.outside.run_in(inside).unwrap()
}

fn address(text: &str) -> Address {
    text.parse::<IpAddr>().unwrap().into()
}

fn ip(lab: &Lab, lines: &str) {
    lab.outside.namespace.ip(lines).unwrap();
}

/// On the node, between the outside and the pod.
fn nft(lab: &Lab, rules: &str) {
    let node = lab.node().namespace.name();
    let output = std::process::Command::new("ip").args(["netns", "exec", node, "nft", rules]).output().unwrap();
    assert!(output.status.success(), "nft {rules}: {}", String::from_utf8_lossy(&output.stderr));
}

fn firewall(lab: &Lab, verdict: &str) {
    nft(lab, "flush ruleset");
    nft(lab, "add table inet wall");
    nft(lab, "add chain inet wall forward { type filter hook forward priority 0; }");
    nft(lab, &format!("add rule inet wall forward tcp dport 8080 {verdict}"));
}

fn specific(text: &str) -> Option<Way> {
    Some(Way::Specific(text.parse().unwrap()))
}

#[test]
fn the_kernel_says_which_way_it_would_take() {
    let lab = Lab::new(1).unwrap();
    block_on(&lab, async |lab: &Lab| {
        let routes = Routes::open().unwrap();
        let way = async |text: &str| routes.way(address(text)).await;
        assert_eq!(way("10.244.1.2").await, Some(Way::Barred(Bar::NoRoute)));
        assert_eq!(way("fd00:244::1:2").await, Some(Way::Barred(Bar::NoRoute)));
        assert_eq!(way("172.31.0.11").await, specific("172.31.0.0/24"), "on the wire");
        ip(lab, "route add default via 172.31.0.11\nroute add default via fd00:31::11\n");
        assert_eq!((way("10.244.1.2").await, way("fd00:244::1:2").await), (Some(Way::Default), Some(Way::Default)));
        ip(lab, "route add 10.244.0.0/16 via 172.31.0.11\nroute add fd00:244::/64 via fd00:31::11\n");
        assert_eq!((way("10.244.1.2").await, way("10.245.1.2").await), (specific("10.244.0.0/16"), Some(Way::Default)));
        assert_eq!(way("fd00:244::1:2").await, specific("fd00:244::/64"));
        for (kind, bar) in
            [("blackhole", Bar::Blackhole), ("unreachable", Bar::Unreachable), ("prohibit", Bar::Prohibit)]
        {
            ip(lab, &format!("route add {kind} 10.244.1.0/24\nroute add {kind} fd00:244::1:0/112\n"));
            assert_eq!(way("10.244.1.2").await, Some(Way::Barred(bar)), "{kind}");
            assert_eq!(way("fd00:244::1:2").await, Some(Way::Barred(bar)), "{kind}");
            ip(lab, &format!("route del {kind} 10.244.1.0/24\nroute del {kind} fd00:244::1:0/112\n"));
        }
        // In another table, that a rule leads to: as the kernel sees it.
        ip(lab, "route add 10.244.1.0/24 via 172.31.0.11 table 77\n");
        assert_eq!(way("10.244.1.2").await, specific("10.244.0.0/16"), "no rule leads there");
        ip(lab, "rule add to 10.244.0.0/16 table 77\n");
        assert_eq!(way("10.244.1.2").await, specific("10.244.1.0/24"));
        // A VPN's default route in two halves is still one.
        ip(lab, "route add 0.0.0.0/1 via 172.31.0.11\nroute add 128.0.0.0/1 via 172.31.0.11\n");
        assert_eq!(way("192.0.2.1").await, Some(Way::Default));
    });
}

#[test]
fn service_addresses_that_the_network_leads_to() {
    let lab = Lab::new(1).unwrap();
    block_on(&lab, async |lab: &Lab| {
        let routes = Routes::open().unwrap();
        ip(lab, "route add default via 172.31.0.11\nroute add 10.96.0.0/16 via 172.31.0.11\n");
        ip(lab, "route add blackhole 10.96.7.0/24\nroute add fd00:96::/112 via fd00:31::11\n");
        let specific = routes.specific().await;
        let leads = |text: &str| specific.iter().any(|net| net.contains(&text.parse::<IpAddr>().unwrap()));
        assert!(
            leads("10.96.0.1") && leads("10.96.8.1") && leads("fd00:96::1") && leads("172.31.0.11"),
            "{specific:?}"
        );
        assert!(!leads("10.96.7.1") && !leads("10.97.0.1") && !leads("192.0.2.1"), "{specific:?}");
    });
}

#[test]
fn a_reset_is_an_answer_and_an_icmp_message_is_none() {
    let lab = Lab::new(1).unwrap();
    let _server = lab.pod(0).serve(8080).unwrap();
    ip(&lab, "route add default via 172.31.0.11\nroute add default via fd00:31::11\n");
    block_on(&lab, async |lab: &Lab| {
        for pod in [IpAddr::from(lab.pod(0).v4), IpAddr::from(lab.pod(0).v6)] {
            let (open, closed) = (SocketAddr::new(pod, 8080), SocketAddr::new(pod, 8081));
            assert_eq!(knock(open, SILENCE).await, Answer::Connected);
            assert_eq!(knock(closed, SILENCE).await, Answer::Reset);
            firewall(lab, "drop");
            let answer = knock(open, SILENCE).await;
            assert!(matches!(&answer, Answer::Missed(why) if why.contains("silent")), "{open}: {answer:?}");
            // The default of many firewalls, and to the application the same error as a reset.
            firewall(lab, "reject with icmpx type port-unreachable");
            let answer = knock(open, AGAIN).await;
            assert!(matches!(&answer, Answer::Missed(why) if why.contains("ICMP")), "{open}: {answer:?}");
            for kind in ["host-unreachable", "admin-prohibited", "no-route"] {
                firewall(lab, &format!("reject with icmpx type {kind}"));
                let answer = knock(open, AGAIN).await;
                assert!(matches!(answer, Answer::Missed(_)), "{kind}: {answer:?}");
            }
            firewall(lab, "reject with tcp reset");
            assert_eq!(knock(open, SILENCE).await, Answer::Reset, "whoever said it, packets go there and come back");
            nft(lab, "flush ruleset");
            assert_eq!(knock(open, SILENCE).await, Answer::Connected);
        }
    });
}

/// The whole task, and what it has said last.
struct Scout {
    news: mpsc::UnboundedReceiver<News>,
    last: News,
    asked: watch::Sender<Question>,
    _task: tokio::task::JoinSet<()>,
}

fn group(prefix: &str) -> Group {
    Group { cluster: "far".into(), node: Some("node-1".into()), prefix: prefix.parse().unwrap() }
}

impl Scout {
    fn start(lab: &Lab) -> Scout {
        let pod = lab.pod(0);
        let asked: Arc<[Asked]> = [
            (group("10.244.1.0/24"), vec![(pod.v4.into(), 8080)]),
            (group("fd00:244::/64"), vec![(pod.v6.into(), 8080)]),
        ]
        .map(|(group, ready): (Group, Vec<(IpAddr, u16)>)| {
            (group, ready.into_iter().map(|(ip, port)| (Address::from(ip), port)).collect())
        })
        .into();
        let (asked, receiver) = watch::channel(Some(asked));
        let (tell, news) = mpsc::unbounded_channel();
        let pace = Pace { interval: Duration::from_secs(2), per_second: 50 };
        let mut task = tokio::task::JoinSet::new();
        task.spawn(async move { run(pace, receiver, move |news| tell.send(news).is_ok()).await.unwrap() });
        Scout { news, last: News::default(), asked, _task: task }
    }

    async fn until(&mut self, what: &str, found: Found) {
        let start = Instant::now();
        let so = |news: &News| news.findings.len() == 2 && news.findings.iter().all(|one| one.found == found);
        while !so(&self.last) {
            let left =
                PATIENCE.checked_sub(start.elapsed()).unwrap_or_else(|| panic!("not so: {what}: {:?}", self.last));
            if let Ok(news) = tokio::time::timeout(left, self.news.recv()).await {
                self.last = news.expect("the task goes on");
            }
        }
        let both = [group("10.244.1.0/24"), group("fd00:244::/64")].map(|group| self.last.reach.of(&group));
        assert_eq!(both, [found; 2], "the plan is told the same");
    }

    fn evidence(&self) -> String {
        self.last.findings.iter().map(|one| one.evidence.clone()).collect::<Vec<_>>().join("; ")
    }
}

#[test]
fn routes_that_come_and_go_and_walls_that_rise_and_fall() {
    let lab = Lab::new(1).unwrap();
    let _server = lab.pod(0).serve(8080).unwrap();
    block_on(&lab, async |lab: &Lab| {
        let mut scout = Scout::start(lab);
        scout.until("no route at all", Found::Node).await;
        assert!(scout.evidence().contains("no route"), "{}", scout.evidence());
        ip(lab, "route add 10.244.0.0/16 via 172.31.0.11\nroute add fd00:244::/64 via fd00:31::11\n");
        scout.until("a static route", Found::Direct).await;
        assert!(scout.evidence().contains("route to 10.244.0.0/16"), "{}", scout.evidence());
        ip(lab, "route del 10.244.0.0/16\nroute del fd00:244::/64\n");
        scout.until("it went", Found::Node).await;
        ip(lab, "route add default via 172.31.0.11\nroute add default via fd00:31::11\n");
        scout.until("by the default route somebody answers", Found::Direct).await;
        assert!(scout.evidence().contains("10.244.1.2:8080 answered"), "{}", scout.evidence());
        firewall(lab, "drop");
        scout.until("nobody answers any more", Found::Node).await;
        assert!(scout.evidence().contains("3 misses") && scout.evidence().contains("silent"), "{}", scout.evidence());
        nft(lab, "flush ruleset");
        scout.until("the wall fell", Found::Direct).await;
        firewall(lab, "reject with icmpx type admin-prohibited");
        scout.until("a wall that says so", Found::Node).await;
        // A route of its own is believed without asking.
        ip(lab, "route add 10.244.0.0/16 via 172.31.0.11\nroute add fd00:244::/64 via fd00:31::11\n");
        scout.until("a route says otherwise", Found::Direct).await;
        ip(lab, "route add blackhole 10.244.1.0/24\nroute add blackhole fd00:244::1:0/112\n");
        scout.until("a blackhole inside it", Found::Node).await;
        assert!(scout.evidence().contains("blackhole"), "{}", scout.evidence());
        scout.asked.send_replace(Some(Arc::new([])));
        let start = Instant::now();
        while !scout.last.findings.is_empty() {
            assert!(start.elapsed() < PATIENCE, "nobody asks any more: {:?}", scout.last.findings);
            scout.last = tokio::time::timeout(PATIENCE, scout.news.recv()).await.unwrap().unwrap();
        }
    });
}
