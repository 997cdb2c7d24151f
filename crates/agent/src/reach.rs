//! Which pods this host reaches by their own addresses (`pods: auto`). One task asks the kernel for its routes, and again
//! whenever they change, and knocks at pods to which only a default route leads; the owner says which groups the plan
//! needs and gets what was found.

mod knock;
mod ledger;
mod route;
mod way;

pub use knock::{Answer, SILENCE, knock};
pub use ledger::{Asked, Evidence, Finding, Ledger, Pace};
pub use route::{Change, Routes};
pub use way::{Bar, Way};

use anyhow::Context;
use beeline_model::reach::{Group, Reach};
use ipnet::IpNet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// A way that is lost should be left at once, but routing daemons change many routes at a time, and interfaces come and go
/// with every container: between two looks at everything is at least this long.
fn settle(change: Change) -> Duration {
    match change {
        Change::Route => Duration::from_millis(100),
        Change::Interface => Duration::from_secs(1),
    }
}

/// Without a word from the kernel everything is looked up anew this often, should a change have been lost.
const LOOK: Duration = Duration::from_secs(60);
/// Newer evidence for what is known already is told no more often than this.
const EVIDENCE: Duration = Duration::from_secs(5);
/// Knocks at the same time.
const AT_ONCE: usize = 128;
pub const PER_SECOND: usize = 50;

/// After a failure of netlink.
const AGAIN: Duration = Duration::from_secs(5);

/// What was found, for the plan and for `status`.
#[derive(Clone, Debug, Default)]
pub struct News {
    pub reach: Reach,
    pub findings: Vec<Finding>,
    /// The question that this answers.
    pub asked: Arc<[Asked]>,
    /// Every group has been looked at: a route speaks for it, or somebody was asked at least once.
    pub settled: bool,
    /// Nothing can be found out now, and why: what was found before holds.
    pub error: Option<String>,
}

pub type Question = Option<Arc<[Asked]>>;

/// Finds out until nobody listens. `asked`: the groups that the plan needs, be it none; `None`: nothing is done at all.
pub async fn run(pace: Pace, mut asked: watch::Receiver<Question>, tell: impl Fn(News) -> bool) -> anyhow::Result<()> {
    loop {
        let Err(error) = serve(pace, &mut asked, &tell).await else { return Ok(()) };
        tracing::warn!("the ways to pods cannot be found out: {error:#}; tried again");
        if !tell(News {
            error: Some(format!("{error:#}; tried again, what was found before holds")),
            ..News::default()
        }) {
            return Ok(());
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// Until nobody listens.
async fn serve(pace: Pace, asked: &mut watch::Receiver<Question>, tell: &impl Fn(News) -> bool) -> anyhow::Result<()> {
    let mut scout: Option<Scout> = None;
    loop {
        let wanted = asked.borrow_and_update().clone();
        match (&mut scout, wanted) {
            (Some(scout), wanted) => scout.take(wanted.unwrap_or_default()).await,
            (None, Some(wanted)) => scout.insert(Scout::open(pace)?).take(wanted).await,
            (None, None) => {}
        }
        if let Some(scout) = &mut scout
            && !scout.tell(tell)
        {
            return Ok(());
        }
        let work = async {
            match &mut scout {
                Some(scout) => scout.work(tell).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = asked.changed() => if changed.is_err() { return Ok(()) },
            worked = work => return worked,
        }
    }
}

struct Scout {
    ledger: Ledger,
    routes: Routes,
    routed: Vec<IpNet>,
    asked: Arc<[Asked]>,
    /// As it was told last.
    settled: bool,
    knocks: JoinSet<(Group, SocketAddr, Answer)>,
    /// When everything was looked up last.
    looked: Instant,
    /// Looked up anew no later than this.
    look: Instant,
    /// Something differs from what was told, to be told by then.
    open: Option<Instant>,
}

impl Scout {
    fn open(pace: Pace) -> anyhow::Result<Scout> {
        let (now, routes) = (Instant::now(), Routes::open().context("routes cannot be read (netlink)")?);
        let ledger = Ledger::new(pace, now);
        Ok(Scout {
            ledger,
            routes,
            routed: Vec::new(),
            asked: Arc::default(),
            settled: false,
            knocks: JoinSet::new(),
            looked: now,
            look: now,
            open: Some(now),
        })
    }

    fn note(&mut self, wait: Duration) {
        let by = Instant::now() + wait;
        self.open = Some(self.open.map_or(by, |open| open.min(by)));
    }

    async fn take(&mut self, asked: Arc<[Asked]>) {
        self.note(Duration::ZERO);
        (self.settled, self.asked) = (false, asked);
        if self.ledger.ask(&self.asked, Instant::now()) || self.look <= Instant::now() {
            self.survey().await;
        }
    }

    /// Every group's way, and the service addresses that the network itself knows.
    async fn survey(&mut self) {
        for (group, addresses) in self.ledger.addresses() {
            let mut way: Option<Way> = None;
            for address in addresses {
                let Some(next) = self.routes.way(address).await else { continue };
                way = Some(way.map_or(next, |way| way.worst(next)));
            }
            if let Some(way) = way {
                let flips = self.ledger.see(&group, way, Instant::now());
                self.note(if flips { Duration::ZERO } else { EVIDENCE });
            }
        }
        let routed = self.routes.specific().await;
        if routed != self.routed {
            self.note(Duration::ZERO);
        }
        (self.routed, self.looked) = (routed, Instant::now());
        self.look = self.looked + LOOK;
    }

    /// Returns only when it cannot go on; may be dropped at any await.
    async fn work(&mut self, tell: &impl Fn(News) -> bool) -> anyhow::Result<()> {
        loop {
            self.knock();
            let now = Instant::now();
            if now >= self.look {
                self.survey().await;
            }
            if !self.tell(tell) {
                return Ok(());
            }
            let next = self.ledger.next(now).filter(|_| self.knocks.len() < AT_ONCE);
            let wake = [next, self.open].into_iter().flatten().fold(self.look, Instant::min);
            tokio::select! {
                Some(done) = self.knocks.join_next() => self.hear(done),
                changed = self.routes.changed() => {
                    let change = changed.context("the kernel tells no more of its routes")?;
                    if change == Change::Route {
                        self.ledger.stir(now);
                    }
                    self.look = self.look.min(now.max(self.looked + settle(change)));
                }
                () = tokio::time::sleep_until(wake.into()) => {}
            }
        }
    }

    fn knock(&mut self) {
        if self.knocks.len() >= AT_ONCE {
            return;
        }
        for (group, at) in self.ledger.due(Instant::now()) {
            self.knocks.spawn(async move { (group, at, knock(at, SILENCE).await) });
        }
    }

    fn hear(&mut self, done: Result<(Group, SocketAddr, Answer), tokio::task::JoinError>) {
        let Ok((group, at, answer)) = done else { return };
        if let Answer::Unable(why) = &answer {
            tracing::debug!("{at} could not be asked: {why}");
        }
        let flips = self.ledger.hear(&group, at, answer, Instant::now());
        self.note(if flips { Duration::ZERO } else { EVIDENCE });
    }

    /// Says nothing if nothing changed.
    fn tell(&mut self, tell: &impl Fn(News) -> bool) -> bool {
        let settled = self.ledger.is_settled();
        let due = self.open.take_if(|by| *by <= Instant::now()).is_some();
        if !due && settled == self.settled {
            return true;
        }
        self.settled = settled;
        let reach = Reach { found: self.ledger.found(), routed: self.routed.clone(), ..Reach::default() };
        tell(News { reach, findings: self.ledger.findings(), asked: self.asked.clone(), settled, error: None })
    }
}
