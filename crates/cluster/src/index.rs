//! Which object of which file counts. Of two with the same kind, namespace and name the first counts, in the order of
//! file names and then of places in the file; the others are refused and named. Plain synchronous state: it is told
//! what files say now and answers with the facts that differ.

use crate::mirror::Mirrors;
use crate::object::{Body, Identity, Object, Place};
use crate::orphan::Orphans;
use beeline_model::fact::{Fact, Refusal};
use beeline_model::{Name, OwnerName};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

#[derive(Clone)]
struct Claimant {
    file: Name,
    place: Place,
    /// Of its body: the facts themselves are not kept.
    fingerprint: u64,
    selectorless: bool,
    /// Of slices and Endpoints: whose they are.
    owner: Option<OwnerName>,
}

impl Claimant {
    fn rank(&self) -> (&Name, Place) {
        (&self.file, self.place)
    }
}

type Before = HashMap<Identity, Claimant>;

pub(crate) struct Index {
    cluster: Name,
    /// Who counts.
    claims: HashMap<Identity, Claimant>,
    /// Who would, were it not for the one that counts. Rare.
    losers: BTreeMap<Identity, Vec<Claimant>>,
    mirrors: Mirrors,
    orphans: Orphans,
}

/// What one file says now; a file that is gone says nothing.
pub(crate) struct Change {
    pub(crate) file: Name,
    /// What it claimed until now.
    pub(crate) old: Box<[Identity]>,
    pub(crate) objects: Vec<Object>,
    /// What counted until now stays, even if the file does not name it any more.
    pub(crate) keep: bool,
}

/// What a file claims from now on, and how much of it only because it did before.
pub(crate) struct Holding {
    pub(crate) file: Name,
    pub(crate) claimed: Box<[Identity]>,
    pub(crate) kept: usize,
}

#[derive(Default)]
struct Outcome {
    facts: Vec<Fact>,
    gone: Vec<Fact>,
    /// Services whose mirrored Endpoints may differ now.
    mirrored: BTreeSet<OwnerName>,
    lost_services: HashSet<OwnerName>,
}

impl Index {
    pub(crate) fn new(cluster: Name) -> Index {
        Index {
            cluster,
            claims: HashMap::new(),
            losers: BTreeMap::new(),
            mirrors: Mirrors::default(),
            orphans: Orphans::default(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.claims.len()
    }

    /// Files that claim something that these objects claim too. Where one of them gives way another counts, and what
    /// that one says must be read again, since only a fingerprint of it is known here.
    pub(crate) fn rivals<'a>(&'a self, claimed: &'a [Identity]) -> impl Iterator<Item = &'a Name> {
        let claimed = if self.losers.is_empty() { &[] } else { claimed };
        let contested = claimed.iter().filter_map(|id| Some((id, self.losers.get(id)?)));
        contested.flat_map(|(id, losers)| losers.iter().chain(self.claims.get(id)).map(|claimant| &claimant.file))
    }

    /// The facts that differ: what is new or other first, what is gone last. The changes must include all rivals.
    pub(crate) fn apply(&mut self, changes: Vec<Change>) -> (Vec<Fact>, Vec<Holding>) {
        let mut before = Before::new();
        let holdings = changes.iter().map(|change| self.withdraw(change, &mut before)).collect();
        for change in &changes {
            change.objects.iter().for_each(|object| self.claim(&change.file, object, &mut before));
        }
        let mut outcome = Outcome::default();
        for change in changes {
            change.objects.into_iter().for_each(|object| self.settle(&change.file, object, &before, &mut outcome));
        }
        self.take_back(&before, &mut outcome);
        let Outcome { mut facts, mut gone, mirrored, .. } = outcome;
        for service in mirrored {
            let claimant = self.claims.get(&Identity::Service(service.clone()));
            let open = claimant.is_some_and(|claimant| claimant.selectorless);
            self.mirrors.show(&service, open, &mut facts, &mut gone);
        }
        facts.extend(gone);
        (facts, holdings)
    }

    fn withdraw(&mut self, change: &Change, before: &mut Before) -> Holding {
        let named: HashSet<&Identity> = change.objects.iter().map(|object| &object.identity).collect();
        let mut claimed: Vec<Identity> = named.iter().copied().cloned().collect();
        for id in &change.old {
            let counts = self.claims.get(id).is_some_and(|claimant| claimant.file == change.file);
            if counts && change.keep && !named.contains(id) {
                claimed.push(id.clone());
            } else if counts && let Some(claimant) = self.claims.remove(id) {
                before.insert(id.clone(), claimant);
            }
            self.leave(id, &change.file);
        }
        let kept = claimed.len() - named.len();
        Holding { file: change.file.clone(), claimed: claimed.into(), kept }
    }

    fn leave(&mut self, id: &Identity, file: &Name) {
        if let Some(losers) = self.losers.get_mut(id) {
            losers.retain(|loser| loser.file != *file);
            if losers.is_empty() {
                self.losers.remove(id);
            }
        }
    }

    fn claim(&mut self, file: &Name, object: &Object, before: &mut Before) {
        let id = &object.identity;
        let claimant = Claimant {
            file: file.clone(),
            place: object.place,
            fingerprint: object.body.fingerprint(),
            selectorless: object.body.selectorless(),
            owner: object.body.owner().cloned(),
        };
        let loser = match self.claims.get_mut(id) {
            None => {
                self.claims.insert(id.clone(), claimant);
                return;
            }
            Some(first) if claimant.rank() < first.rank() => {
                let displaced = std::mem::replace(first, claimant);
                before.entry(id.clone()).or_insert_with(|| displaced.clone());
                displaced
            }
            Some(_) => claimant,
        };
        let losers = self.losers.entry(id.clone()).or_default();
        let place = losers.partition_point(|other| other.rank() < loser.rank());
        losers.insert(place, loser);
    }

    /// One object that was read: does it count, and does it say something else than the one that counted before?
    fn settle(&mut self, file: &Name, object: Object, before: &Before, outcome: &mut Outcome) {
        let Object { identity, place, body } = object;
        let Some(now) = self.claims.get(&identity).filter(|now| now.rank() == (file, place)) else { return };
        let (now, then) = (now.clone(), before.get(&identity));
        if let Identity::Service(name) = &identity {
            self.orphans.adopt(name);
            if then.is_none_or(|then| then.selectorless != now.selectorless) {
                outcome.mirrored.insert(name.clone());
            }
        }
        let said = then.map_or(0, |then| then.fingerprint);
        if said == now.fingerprint {
            return;
        }
        self.orphans.leave(&identity, then.and_then(|then| then.owner.as_ref()));
        if let Some(owner) = now.owner.filter(|owner| !self.claims.contains_key(&Identity::Service(owner.clone()))) {
            self.orphans.join(&identity, &owner);
        }
        match (body, &identity) {
            (Body::Endpoints(slices), Identity::Endpoints(name)) => {
                self.mirrors.say(name, slices);
                outcome.mirrored.insert(name.clone());
            }
            (body, _) => match body.into_fact() {
                Some(fact) => outcome.facts.push(fact),
                None => outcome.gone.extend(identity.gone(&self.cluster)),
            },
        }
    }

    /// What counted before and is claimed by nobody now.
    fn take_back(&mut self, before: &Before, outcome: &mut Outcome) {
        for (id, then) in before.iter().filter(|(id, _)| !self.claims.contains_key(id)) {
            if then.fingerprint != 0 {
                outcome.gone.extend(id.gone(&self.cluster));
            }
            self.orphans.leave(id, then.owner.as_ref());
            match id {
                Identity::Service(name) => {
                    outcome.mirrored.insert(name.clone());
                    outcome.lost_services.insert(name.clone());
                }
                Identity::Endpoints(name) => {
                    self.mirrors.say(name, Vec::new());
                    outcome.mirrored.insert(name.clone());
                }
                Identity::Slice(_) | Identity::Node(_) | Identity::Pod(_) => {}
                // Nobody publishes into a folder.
                Identity::PolicySlice(_) | Identity::NodeSlice(_) => {}
                Identity::Namespace(_) | Identity::Policy(_) | Identity::Range(_) => {}
            }
        }
        self.abandon(&outcome.lost_services);
    }

    /// Slices of Services that are gone. Services seldom go, so no index is kept for this; few of them are compared
    /// one by one, which is a tenth of the cost of hashing every owner.
    fn abandon(&mut self, lost: &HashSet<OwnerName>) {
        if lost.is_empty() {
            return;
        }
        let few = lost.len() <= 8;
        let is_lost =
            |owner: &&OwnerName| if few { lost.iter().any(|name| name == *owner) } else { lost.contains(*owner) };
        for (id, claimant) in &self.claims {
            if let Some(owner) = claimant.owner.as_ref().filter(is_lost) {
                self.orphans.join(id, owner);
            }
        }
    }

    pub(crate) fn refusals(&self) -> Vec<Refusal> {
        let duplicates = self.losers.iter().flat_map(|(id, losers)| {
            let first = self.claims.get(id);
            losers.iter().filter_map(move |loser| Some(duplicate(id, first?, loser)))
        });
        duplicates.chain(self.orphans.refusals()).collect()
    }
}

fn duplicate(id: &Identity, first: &Claimant, loser: &Claimant) -> Refusal {
    Refusal {
        subject: id.to_string(),
        reason: "duplicate",
        message: format!(
            "{} {} says it again; {} {} counts: remove one of them",
            loser.file, loser.place, first.file, first.place
        ),
    }
}
