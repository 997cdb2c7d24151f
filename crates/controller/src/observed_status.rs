//! The policies' statuses as they are on the API server. They are watched, so that a status that something else has changed
//! is corrected.

use crate::cluster_state::{CLUSTER, SharedState};
use crate::status::resource;
use beeline_cluster::policy::PolicyStatus;
use beeline_model::policy::{PolicyKind, PolicyName};
use futures::TryStreamExt;
use kube::api::DynamicObject;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Debug)]
pub struct ObservedStatus {
    /// UID of the policy.
    pub uid: Box<str>,
    /// resourceVersion of the policy, which a write of the status must name.
    pub version: String,
    pub status: PolicyStatus,
}

#[derive(Debug, Default)]
pub struct ObservedStatuses {
    statuses: BTreeMap<PolicyName, ObservedStatus>,
    /// Policies that a running list has not named yet.
    unlisted: BTreeSet<PolicyName>,
}

impl ObservedStatuses {
    /// `None` if the policy with this UID has not been observed.
    pub fn get(&self, name: &PolicyName, uid: &str) -> Option<&ObservedStatus> {
        self.statuses.get(name).filter(|observed| *observed.uid == *uid)
    }

    /// Returns the policy whose status changed, or `None` if a newer version is known: the controller's own writes are
    /// recorded before the watch delivers them.
    pub fn record(&mut self, kind: PolicyKind, object: DynamicObject) -> Option<PolicyName> {
        let name = policy_name(kind, &object)?;
        let (uid, version) = (object.metadata.uid?, object.metadata.resource_version?);
        self.unlisted.remove(&name);
        if self.get(&name, &uid).is_some_and(|observed| !is_newer(&version, &observed.version)) {
            return None;
        }
        // A status that cannot be parsed counts as empty and is overwritten.
        let status = object.data.get("status").cloned().unwrap_or_default();
        let status = serde_json::from_value(status).unwrap_or_default();
        self.statuses.insert(name.clone(), ObservedStatus { uid: uid.into(), version, status });
        Some(name)
    }

    fn apply(&mut self, kind: PolicyKind, event: watcher::Event<DynamicObject>) -> Option<PolicyName> {
        match event {
            watcher::Event::Apply(object) | watcher::Event::InitApply(object) => return self.record(kind, object),
            watcher::Event::Delete(object) => drop(self.statuses.remove(&policy_name(kind, &object)?)),
            watcher::Event::Init => {
                self.unlisted.extend(self.statuses.keys().filter(|name| name.kind == kind).cloned());
            }
            watcher::Event::InitDone => {
                let deleted = self.unlisted.iter().filter(|name| name.kind == kind);
                deleted.for_each(|name| drop(self.statuses.remove(name)));
                self.unlisted.retain(|name| name.kind != kind);
            }
        }
        None
    }
}

fn policy_name(kind: PolicyKind, object: &DynamicObject) -> Option<PolicyName> {
    let (namespace, name) = (object.metadata.namespace.as_deref()?, object.metadata.name.as_deref()?);
    Some(PolicyName { kind, cluster: CLUSTER.into(), namespace: namespace.into(), name: name.into() })
}

/// The resourceVersions of one object increase.
fn is_newer(a: &str, b: &str) -> bool {
    !matches!((a.parse::<u64>(), b.parse::<u64>()), (Ok(a), Ok(b)) if a <= b)
}

/// Watches the statuses of both kinds of policies.
pub async fn watch_statuses(client: Client, state: SharedState) -> anyhow::Result<()> {
    let [first, second] = PolicyKind::BOTH.map(|kind| watch_kind(client.clone(), kind, state.clone()));
    tokio::try_join!(first, second).map(drop)
}

async fn watch_kind(client: Client, kind: PolicyKind, state: SharedState) -> anyhow::Result<()> {
    let api: Api<DynamicObject> = Api::all_with(client, &resource(kind));
    let events = watcher(api, watcher::Config::default()).default_backoff();
    let mut events = std::pin::pin!(events);
    loop {
        match events.try_next().await {
            Ok(Some(event)) => state.with(|state| {
                if let Some(name) = state.observed_statuses.apply(kind, event) {
                    state.mark_status_dirty(name);
                }
            }),
            Ok(None) => anyhow::bail!("the watch of the {kind} statuses ended"),
            Err(error) => tracing::warn!(%kind, %error, "cannot watch the statuses of policies, retrying"),
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
    fn an_older_version_is_ignored() {
        let (mut observed, kind) = (ObservedStatuses::default(), PolicyKind::Balancing);
        let name = observed.record(kind, object("10", "ours")).unwrap();
        assert_eq!(observed.record(kind, object("9", "before")), None);
        assert_eq!(observed.get(&name, "1").unwrap().status.mode.as_deref(), Some("ours"));
        assert!(observed.record(kind, object("11", "forged")).is_some());
        assert_eq!(observed.get(&name, "1").unwrap().status.mode.as_deref(), Some("forged"));
        assert!(observed.get(&name, "2").is_none(), "another policy of the same name");
    }

    #[test]
    fn a_policy_that_is_not_listed_again_is_removed() {
        let (mut observed, kind) = (ObservedStatuses::default(), PolicyKind::Balancing);
        let name = observed.record(kind, object("10", "ours")).unwrap();
        observed.apply(kind, watcher::Event::Init);
        observed.apply(PolicyKind::LocalRedirect, watcher::Event::InitDone);
        assert!(observed.get(&name, "1").is_some());
        observed.apply(kind, watcher::Event::InitDone);
        assert!(observed.get(&name, "1").is_none());
    }
}
