//! Which static pod has a cgroup. The mirror pod of a static pod states the uid of the cgroup, and a user who may
//! create pods can write another mirror pod with the same uid. Of two such pods the older one is used.

use beeline_model::object::PodName;
use std::collections::HashMap;

/// Claims of static pods only: the uids of other pods are set by the API server and unique.
#[derive(Default)]
pub(crate) struct StaticPodClaims {
    /// By uid: the creation time and the name of the pod that has the cgroup.
    holders: HashMap<Box<str>, (i64, PodName)>,
    uids: HashMap<PodName, Box<str>>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ClaimResult {
    /// The pod has the cgroup.
    Granted,
    /// An older pod has the cgroup.
    HeldBy(PodName),
    /// The pod has the cgroup now, and a younger pod has lost it.
    TakenFrom(PodName),
}

impl StaticPodClaims {
    pub(crate) fn claim(&mut self, name: &PodName, uid: &str, created: i64) -> ClaimResult {
        if self.uids.get(name).is_some_and(|before| **before != *uid) {
            self.release(name);
        }
        let before = match self.holders.get(uid) {
            Some((since, holder)) if holder != name && (*since, holder) <= (created, name) => {
                return ClaimResult::HeldBy(holder.clone());
            }
            Some((_, holder)) if holder != name => Some(holder.clone()),
            _ => None,
        };
        before.iter().for_each(|holder| self.release(holder));
        self.holders.insert(uid.into(), (created, name.clone()));
        self.uids.insert(name.clone(), uid.into());
        before.map_or(ClaimResult::Granted, ClaimResult::TakenFrom)
    }

    /// Removes the claim of a deleted pod. Another pod that claims the same uid gets the cgroup with its next change.
    pub(crate) fn release(&mut self, name: &PodName) {
        if let Some(uid) = self.uids.remove(name) {
            self.holders.remove(&uid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_older_of_two_pods_has_the_cgroup_in_either_order() {
        let name = |name: &str| PodName { cluster: "local".into(), namespace: "a".into(), name: name.into() };
        let (old, young) = (name("z"), name("b"));
        let mut claims = StaticPodClaims::default();
        assert_eq!(claims.claim(&young, "u", 20), ClaimResult::Granted);
        assert_eq!(claims.claim(&old, "u", 10), ClaimResult::TakenFrom(young.clone()));
        assert_eq!(claims.claim(&young, "u", 20), ClaimResult::HeldBy(old.clone()));
        assert_eq!(claims.claim(&old, "u", 10), ClaimResult::Granted, "claimed again");
        let same_age = claims.claim(&name("c"), "u", 10);
        assert_eq!(same_age, ClaimResult::TakenFrom(old.clone()), "the name decides at the same age");
        assert_eq!(claims.claim(&name("c"), "v", 10), ClaimResult::Granted, "the uid changed with the manifest");
        assert_eq!(claims.claim(&young, "u", 20), ClaimResult::Granted);
        claims.release(&young);
        assert_eq!(claims.claim(&old, "u", 30), ClaimResult::Granted);
    }
}
