//! Follows the nodes' reports: one small Lease each, in a namespace of their own.

use crate::world::World;
use beeline_cluster::{REPORT, read_report};
use futures::TryStreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use std::sync::{Arc, Mutex, PoisonError};

pub async fn follow(client: Client, namespace: String, world: Arc<Mutex<World>>) -> anyhow::Result<()> {
    let api: Api<Lease> = Api::namespaced(client, &namespace);
    let events = watcher(api, watcher::Config::default().labels(REPORT)).default_backoff();
    let mut events = std::pin::pin!(events);
    loop {
        match events.try_next().await {
            Ok(Some(event)) => take(&mut world.lock().unwrap_or_else(PoisonError::into_inner), event),
            Ok(None) => anyhow::bail!("the watch of the nodes' reports ended"),
            Err(error) => tracing::warn!("the nodes' reports cannot be followed: {error}"),
        }
    }
}

/// A report that a new list does not name belongs to a node that is gone, or comes again with its next change.
fn take(world: &mut World, event: watcher::Event<Lease>) {
    match event {
        watcher::Event::Apply(lease) | watcher::Event::InitApply(lease) => {
            if let Some((node, report)) = read_report(&lease) {
                world.census.report(&node, Some(report));
            }
        }
        watcher::Event::Delete(lease) => {
            let name = lease.metadata.name.as_deref().and_then(|name| name.strip_prefix("beeline."));
            name.into_iter().for_each(|node| world.census.report(node, None));
        }
        watcher::Event::Init | watcher::Event::InitDone => {}
    }
}
