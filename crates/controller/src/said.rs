//! What the policies' statuses say, whoever wrote it: watched, so that what somebody else put there is seen and put right.

use crate::status::resource;
use crate::world::{CLUSTER, World};
use beeline_cluster::policy::PolicyStatus;
use beeline_model::policy::{PolicyKind, PolicyName};
use futures::TryStreamExt;
use kube::api::DynamicObject;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

#[derive(Clone, Debug)]
pub struct Statement {
    /// Of the policy that it is written in.
    pub uid: Box<str>,
    /// Of the object: who writes says what it has seen.
    pub version: String,
    pub status: PolicyStatus,
}

#[derive(Debug, Default)]
pub struct Said {
    all: BTreeMap<PolicyName, Statement>,
    /// Not named yet by a list that is under way.
    unnamed: BTreeSet<PolicyName>,
}

impl Said {
    pub fn of(&self, name: &PolicyName, uid: &str) -> Option<&Statement> {
        self.all.get(name).filter(|said| *said.uid == *uid)
    }

    /// The policy whose status it is, unless something newer is known: our own writes are told before they are watched.
    pub fn hear(&mut self, kind: PolicyKind, object: DynamicObject) -> Option<PolicyName> {
        let name = name(kind, &object)?;
        let (uid, version) = (object.metadata.uid?, object.metadata.resource_version?);
        self.unnamed.remove(&name);
        if self.of(&name, &uid).is_some_and(|said| !is_after(&version, &said.version)) {
            return None;
        }
        // One that cannot even be read says nothing that is right.
        let status = object.data.get("status").cloned().unwrap_or_default();
        let status = serde_json::from_value(status).unwrap_or_default();
        self.all.insert(name.clone(), Statement { uid: uid.into(), version, status });
        Some(name)
    }

    fn take(&mut self, kind: PolicyKind, event: watcher::Event<DynamicObject>) -> Option<PolicyName> {
        match event {
            watcher::Event::Apply(object) | watcher::Event::InitApply(object) => return self.hear(kind, object),
            watcher::Event::Delete(object) => drop(self.all.remove(&name(kind, &object)?)),
            watcher::Event::Init => self.unnamed.extend(self.all.keys().filter(|name| name.kind == kind).cloned()),
            watcher::Event::InitDone => {
                let gone = |name: &&PolicyName| name.kind == kind;
                self.unnamed.iter().filter(gone).for_each(|name| drop(self.all.remove(name)));
                self.unnamed.retain(|name| name.kind != kind);
            }
        }
        None
    }
}

fn name(kind: PolicyKind, object: &DynamicObject) -> Option<PolicyName> {
    let (namespace, name) = (object.metadata.namespace.as_deref()?, object.metadata.name.as_deref()?);
    Some(PolicyName { kind, cluster: CLUSTER.into(), namespace: namespace.into(), name: name.into() })
}

/// Versions of one object grow.
fn is_after(a: &str, b: &str) -> bool {
    !matches!((a.parse::<u64>(), b.parse::<u64>()), (Ok(a), Ok(b)) if a <= b)
}

pub async fn follow(client: Client, world: Arc<Mutex<World>>) -> anyhow::Result<()> {
    let [first, second] = PolicyKind::BOTH.map(|kind| follow_kind(client.clone(), kind, world.clone()));
    tokio::try_join!(first, second).map(drop)
}

async fn follow_kind(client: Client, kind: PolicyKind, world: Arc<Mutex<World>>) -> anyhow::Result<()> {
    let api: Api<DynamicObject> = Api::all_with(client, &resource(kind));
    let events = watcher(api, watcher::Config::default()).default_backoff();
    let mut events = std::pin::pin!(events);
    loop {
        match events.try_next().await {
            Ok(Some(event)) => {
                let mut world = world.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(name) = world.said.take(kind, event) {
                    world.mark_status(name);
                }
            }
            Ok(None) => anyhow::bail!("the watch of the policies' statuses ended"),
            Err(error) => tracing::warn!("the policies' statuses cannot be followed: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object(version: &str, mode: &str) -> DynamicObject {
        let object = json!({
            "metadata": { "namespace": "a", "name": "x", "uid": "1", "resourceVersion": version },
            "status": { "mode": mode },
        });
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn what_is_older_than_what_is_known_is_not_heard() {
        let (mut said, kind) = (Said::default(), PolicyKind::Balancing);
        let name = said.hear(kind, object("10", "ours")).unwrap();
        assert_eq!(said.hear(kind, object("9", "before")), None);
        assert_eq!(said.of(&name, "1").unwrap().status.mode.as_deref(), Some("ours"));
        assert!(said.hear(kind, object("11", "forged")).is_some());
        assert_eq!(said.of(&name, "1").unwrap().status.mode.as_deref(), Some("forged"));
        assert!(said.of(&name, "2").is_none(), "of another policy under its name");
    }

    #[test]
    fn who_is_not_listed_is_no_more() {
        let (mut said, kind) = (Said::default(), PolicyKind::Balancing);
        let name = said.hear(kind, object("10", "ours")).unwrap();
        said.take(kind, watcher::Event::Init);
        said.take(PolicyKind::LocalRedirect, watcher::Event::InitDone);
        assert!(said.of(&name, "1").is_some());
        said.take(kind, watcher::Event::InitDone);
        assert!(said.of(&name, "1").is_none());
    }
}
