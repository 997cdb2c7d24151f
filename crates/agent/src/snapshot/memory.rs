//! What is remembered of one source: every batch comes by, its facts are kept for the disk and written now and then. Plain
//! state but for the disk itself, with the clock handed in.

use super::clock::{Clock, Moment};
use super::file::{Header, Loaded, Place, Recalled, Terms};
use super::flaw::Flaw;
use beeline_cluster::{Batch, Snapshot};
use serde::Serialize;
use std::io;
use std::time::Duration;

/// At most this often, and then only if something changed. What an agent that is killed did not write is lost to the next
/// one, so a small one is written soon; a large one no faster than disks and flash cards like.
const EVERY: Duration = Duration::from_secs(5);
/// On average, in bytes a second.
const PACE: u64 = 32 * 1024;
/// However large it is.
const SELDOM: Duration = Duration::from_secs(600);
/// So often also if nothing did: how old the facts are counts from the last time.
const UNCHANGED: Duration = Duration::from_secs(3600);

/// For `status` and the metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    pub path: String,
    /// Of what is on disk and can be used.
    pub age_seconds: Option<u64>,
    pub bytes: Option<u64>,
    /// Why it could not be written.
    pub error: Option<String>,
    /// What was found on disk and not used, each with its reason.
    pub unfit: Vec<String>,
}

/// What is on disk, as far as it is known here.
#[derive(Clone, Debug, Default)]
pub struct Standing {
    /// When what is there was good.
    written: Option<Moment>,
    report: Report,
}

impl Standing {
    pub fn report(&self, now: &Moment) -> Report {
        let age_seconds = self.written.as_ref().map(|then| now.since(then).as_secs());
        Report { age_seconds, ..self.report.clone() }
    }
}

pub struct Memory {
    place: Place,
    max_age: Option<Duration>,
    clock: Box<dyn Clock>,
    /// All that the source has said and not taken back.
    said: Snapshot,
    /// It has been heard as a whole, whoever spoke for it.
    heard: bool,
    whole: bool,
    dirty: bool,
    /// When it last gave a sign of life: what it said holds until then, whenever it is written.
    well: Option<Moment>,
    /// It is in trouble since, or cannot say everything.
    troubled: bool,
    tried: Option<Moment>,
    standing: Standing,
}

/// Where to look for a snapshot, and what is too old.
pub struct Search {
    place: Place,
    now: Moment,
    max_age: Option<Duration>,
}

impl Search {
    /// Takes its time. `uid`: of the cluster, as far as it is known.
    pub fn run(&self, uid: Option<&str>) -> Loaded {
        self.place.load(&Terms { now: self.now.clone(), max_age: self.max_age, uid })
    }
}

/// One write, to be done where it may take its time.
pub struct Job {
    place: Place,
    header: Header,
    facts: Snapshot,
}

impl Job {
    /// How many bytes it has become.
    pub fn run(&self) -> io::Result<u64> {
        self.place.write(&self.header, self.facts.facts())
    }
}

impl Memory {
    pub fn new(place: Place, max_age: Option<Duration>, clock: Box<dyn Clock>) -> Memory {
        let report = Report { path: place.path().display().to_string(), ..Report::default() };
        Memory {
            place,
            max_age,
            clock,
            said: Snapshot::default(),
            heard: false,
            whole: false,
            dirty: false,
            well: None,
            troubled: true,
            tried: None,
            standing: Standing { written: None, report },
        }
    }

    /// What the disk says, if it can be used. `uid`: of the cluster, as far as it is known.
    pub fn recall(&mut self, uid: Option<&str>) -> Option<Recalled> {
        let loaded = self.search().run(uid);
        self.take_up(loaded)
    }

    pub fn search(&self) -> Search {
        Search { place: self.place.clone(), now: self.clock.now(), max_age: self.max_age }
    }

    /// What a search has found.
    pub fn take_up(&mut self, Loaded { recalled, flaws }: Loaded) -> Option<Recalled> {
        let flaws = flaws.into_iter().filter(|(_, flaw)| !matches!(flaw, Flaw::Missing));
        let unfit: Vec<String> = flaws.map(|(path, flaw)| format!("{}: {flaw}", path.display())).collect();
        for unfit in &unfit {
            tracing::warn!(cluster = %self.place.cluster, "a snapshot is not used: {unfit}");
        }
        self.standing.report.unfit = unfit;
        self.standing.written = recalled.as_ref().map(|recalled| recalled.header.at.clone());
        recalled
    }

    /// A source speaks from now on, and will say everything anew.
    pub fn begin(&mut self) {
        (self.said, self.whole, self.dirty) = (Snapshot::default(), false, false);
        self.troubled = true;
    }

    /// It has said everything at least once.
    pub fn is_heard(&self) -> bool {
        self.heard
    }

    pub fn take(&mut self, batch: &Batch) {
        batch.facts.iter().cloned().for_each(|fact| self.said.apply(fact));
        self.dirty |= !batch.facts.is_empty();
        self.heard |= batch.synced;
        let whole = batch.synced && batch.whole;
        self.whole |= whole;
        let was_well = !std::mem::replace(&mut self.troubled, batch.error.is_some() || !whole);
        // Where one kind cannot be read, what comes of the others is a sign of life, too.
        if was_well || whole && (batch.error.is_none() || !batch.facts.is_empty()) {
            self.well = Some(self.clock.now());
        }
    }

    /// Until when what it said is known to hold.
    fn good(&self, now: Moment) -> Moment {
        if self.troubled { self.well.clone().unwrap_or(now) } else { now }
    }

    /// What to write now, if it is time and the source has said everything. `uid`: which cluster it is.
    pub fn due(&mut self, uid: &str) -> Option<Job> {
        let now = self.clock.now();
        let waited = |since: &Option<Moment>, time| since.as_ref().is_none_or(|since| now.since(since) >= time);
        let every = self.every();
        let unchanged = self.max_age.map_or(UNCHANGED, |most| (most / 4).min(UNCHANGED)).max(every);
        let due =
            waited(&self.tried, every) && (self.dirty || !self.troubled && waited(&self.standing.written, unchanged));
        (self.whole && due).then(|| self.job(uid, now))
    }

    fn every(&self) -> Duration {
        let size = self.standing.report.bytes.unwrap_or(0);
        let most = self.max_age.map_or(SELDOM, |most| (most / 4).min(SELDOM)).max(EVERY);
        Duration::from_secs(size / PACE).clamp(EVERY, most)
    }

    /// At a clean stop: what is not on disk yet.
    pub fn last(&mut self, uid: &str) -> Option<Job> {
        let now = self.clock.now();
        (self.whole && self.dirty).then(|| self.job(uid, now))
    }

    fn job(&mut self, uid: &str, now: Moment) -> Job {
        (self.tried, self.dirty) = (Some(now.clone()), false);
        let header = Header { cluster: self.place.cluster.clone(), uid: uid.into(), at: self.good(now) };
        Job { place: self.place.clone(), header, facts: self.said.clone() }
    }

    /// What came of it.
    pub fn settle(&mut self, job: &Job, written: io::Result<u64>) {
        match written {
            Ok(bytes) => {
                self.standing.written = Some(job.header.at.clone());
                let report = &mut self.standing.report;
                (report.bytes, report.error) = (Some(bytes), None);
                report.unfit.clear();
            }
            Err(error) => {
                self.dirty = true;
                self.fail(format!("{}: {error}", self.standing.report.path));
            }
        }
    }

    fn fail(&mut self, why: String) {
        if self.standing.report.error.as_ref() != Some(&why) {
            tracing::warn!(cluster = %self.place.cluster, "the snapshot cannot be written, the one before stays: {why}");
        }
        self.standing.report.error = Some(why);
    }

    pub fn standing(&self) -> Standing {
        self.standing.clone()
    }

    pub fn report(&self) -> Report {
        self.standing.report(&self.clock.now())
    }
}
