//! Removes reports of nodes that are no more: a few at a time, and nobody waits for it.

use crate::publish::gone;
use crate::world::World;
use beeline_cluster::report_name;
use beeline_model::Name;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::DeleteParams;
use kube::{Api, Client};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

const AT_A_TIME: usize = 20;
const PERIOD: Duration = Duration::from_secs(2);

pub async fn sweep(
    client: Client,
    namespace: String,
    world: Arc<Mutex<World>>,
    mut leader: watch::Receiver<bool>,
) -> anyhow::Result<()> {
    let api: Api<Lease> = Api::namespaced(client, &namespace);
    loop {
        leader.wait_for(|leads| *leads).await?;
        for node in stale(&world) {
            match gone(api.delete(&report_name(&node), &DeleteParams::default()).await.map(drop)) {
                Ok(()) => world.lock().unwrap_or_else(PoisonError::into_inner).census.report(&node, None),
                Err(error) => tracing::warn!("the report of {node}, which is gone, cannot be deleted: {error}"),
            }
        }
        tokio::time::sleep(PERIOD).await;
    }
}

fn stale(world: &Mutex<World>) -> Vec<Name> {
    let mut world = world.lock().unwrap_or_else(PoisonError::into_inner);
    match world.is_current() {
        true => world.census.stale(Instant::now(), AT_A_TIME),
        false => Vec::new(),
    }
}
