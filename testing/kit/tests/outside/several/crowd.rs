//! Clients on the host that dial without pause: as everybody, in views, in a cgroup with a view; TCP and UDP, both families.

use kit::{
    host::{Client, Seat},
    storm::Protocol,
};

use super::trio::{GREEN, NAMES, Stage};
use crate::field::at;

/// One client, and the cluster that must answer it.
struct Dialler {
    cluster: &'static str,
    seat: Seat<'static>,
    client: Client,
}

pub struct Crowd<'a> {
    stage: &'a Stage<'a>,
    all: Vec<Dialler>,
}

type Wish = (&'static str, Seat<'static>, Protocol, usize);

/// Cluster, seat, protocol, family.
const WISHES: [Wish; 7] = [
    ("blue", Seat::Plain, Protocol::Tcp, 0),
    ("blue", Seat::Plain, Protocol::Udp, 1),
    ("blue", Seat::View("blue"), Protocol::Tcp, 1),
    ("green", Seat::View("green"), Protocol::Tcp, 0),
    ("green", Seat::View("green"), Protocol::Tcp, 1),
    ("green", Seat::Cgroup(GREEN), Protocol::Udp, 0),
    ("red", Seat::Plain, Protocol::Tcp, 0),
];

/// Fewer dials than this say nothing.
const ENOUGH: u64 = 20;

impl<'a> Crowd<'a> {
    pub fn gather(stage: &'a Stage<'a>) -> Crowd<'a> {
        Crowd::gather_some(stage, &NAMES)
    }

    pub fn gather_some(stage: &'a Stage<'a>, clusters: &[&str]) -> Crowd<'a> {
        let mut crowd = Crowd { stage, all: Vec::new() };
        clusters.iter().for_each(|cluster| crowd.add(cluster));
        crowd
    }

    /// Those who dial this cluster.
    pub fn add(&mut self, cluster: &str) {
        for (cluster, seat, protocol, family) in WISHES.into_iter().filter(|wish| wish.0 == cluster) {
            let trio = self.stage.trio;
            let address = if cluster == "red" { &trio.own[family] } else { &trio.same[family] };
            let target = at(address, 80).parse().unwrap();
            let client = trio.outside.client(&self.stage.resolver, seat, protocol, target).unwrap();
            self.all.push(Dialler { cluster, seat, client });
        }
    }

    pub fn remove(&mut self, cluster: &str) {
        self.all.retain(|dialler| dialler.cluster != cluster);
    }

    /// What came so far is not counted.
    pub fn forget(&self) {
        self.all.iter().for_each(|dialler| drop(dialler.client.take()));
    }

    /// 0 failed, 0 by a wrong cluster, since the last time.
    pub fn must_be_content(&self, what: &str) {
        self.judge(what, |_| true);
    }

    /// The same of those whose cluster does not depend on the order of the file.
    pub fn views_must_be_content(&self, what: &str) {
        self.judge(what, |dialler| dialler.seat != Seat::Plain || dialler.cluster == "red");
    }

    fn judge(&self, what: &str, counts: impl Fn(&Dialler) -> bool) {
        let mut bad = Vec::new();
        let (mut dials, mut failed, mut strange) = (0, 0, 0);
        for dialler in self.all.iter().filter(|dialler| counts(dialler)) {
            dialler.client.wait_for(ENOUGH).unwrap();
            let score = dialler.client.take();
            let wrong = score.strange(|name| self.stage.trio.cluster_of(name) == dialler.cluster);
            (dials, failed, strange) = (dials + score.dials(), failed + score.failed(), strange + wrong);
            if score.failed() + wrong > 0 {
                bad.push(format!("{} wants {}: {score:?}", dialler.client.name, dialler.cluster));
            }
        }
        self.all.iter().filter(|dialler| !counts(dialler)).for_each(|dialler| drop(dialler.client.take()));
        println!("{what}: {failed} of {dials} dials failed, {strange} reached a wrong cluster");
        assert!(bad.is_empty(), "{what}:\n{}", bad.join("\n"));
    }
}
