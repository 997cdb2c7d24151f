//! Who of the replicas writes: the holder of a Lease. By hand, since there is no such part in the client that we use, and
//! it is one object and four cases. Whether another holder has gone is judged by our own clock (its Lease has not moved
//! for the whole duration), never by comparing clocks.

use crate::settings::Settings;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Api, PostParams};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// What the Lease looked like, and since when.
struct Seen {
    version: Option<String>,
    at: Instant,
}

pub struct Election {
    api: Api<Lease>,
    name: String,
    identity: String,
    duration: Duration,
    seen: Option<Seen>,
    /// When we last held it for certain.
    held: Option<Instant>,
}

impl Election {
    pub fn new(client: kube::Client, settings: &Settings) -> Election {
        Election {
            api: Api::namespaced(client, &settings.namespace),
            name: settings.lease.clone(),
            identity: settings.identity.clone(),
            duration: settings.lease_duration,
            seen: None,
            held: None,
        }
    }

    /// Until `stop`: then the Lease is given back, so that the next one need not wait.
    pub async fn run(mut self, leader: watch::Sender<bool>, mut stop: watch::Receiver<bool>) -> anyhow::Result<()> {
        loop {
            let leads = self.round().await;
            if leader.send_replace(leads) != leads {
                tracing::info!(identity = self.identity, "{}", if leads { "leads" } else { "leads no more" });
            }
            tokio::select! {
                () = tokio::time::sleep(self.duration / 5) => {}
                _ = stop.wait_for(|stop| *stop) => break,
            }
        }
        if leader.send_replace(false) {
            self.release().await;
        }
        // Whoever waits for a signal of ours would take this for it.
        std::future::pending().await
    }

    /// Well before another may take it, whoever cannot renew must have stopped writing.
    async fn round(&mut self) -> bool {
        let patience = self.duration * 2 / 3;
        match tokio::time::timeout(self.duration / 3, self.hold()).await {
            Ok(Ok(true)) => self.held = Some(Instant::now()),
            Ok(Ok(false)) => self.held = None,
            Ok(Err(error)) => tracing::warn!("the Lease {} cannot be renewed: {error}", self.name),
            Err(_) => tracing::warn!("the Lease {} cannot be renewed: no answer", self.name),
        }
        self.held.is_some_and(|at| at.elapsed() < patience)
    }

    async fn hold(&mut self) -> Result<bool, kube::Error> {
        let Some(lease) = self.api.get_opt(&self.name).await? else {
            let lease = self.mine(ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() }, 0);
            return won(self.api.create(&PostParams::default(), &lease).await);
        };
        let spec = lease.spec.clone().unwrap_or_default();
        let holder = spec.holder_identity.as_deref().unwrap_or_default();
        if holder != self.identity && !holder.is_empty() && !self.is_stale(&lease) {
            return Ok(false);
        }
        let changes = spec.lease_transitions.unwrap_or(0) + i32::from(holder != self.identity);
        let next = self.mine(lease.metadata, changes);
        // With the version that was read: of two that try, one wins.
        won(self.api.replace(&self.name, &PostParams::default(), &next).await)
    }

    fn is_stale(&mut self, lease: &Lease) -> bool {
        let version = &lease.metadata.resource_version;
        match &self.seen {
            Some(seen) if seen.version == *version => seen.at.elapsed() > self.duration,
            _ => {
                self.seen = Some(Seen { version: version.clone(), at: Instant::now() });
                false
            }
        }
    }

    fn mine(&self, metadata: ObjectMeta, transitions: i32) -> Lease {
        let now = MicroTime(jiff::Timestamp::now());
        let spec = LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(self.duration.as_secs().max(1)).ok(),
            acquire_time: Some(now.clone()),
            renew_time: Some(now),
            lease_transitions: Some(transitions),
            ..LeaseSpec::default()
        };
        Lease { metadata: ObjectMeta { managed_fields: None, ..metadata }, spec: Some(spec) }
    }

    async fn release(&self) {
        let given_back = async {
            let mut lease = self.api.get(&self.name).await?;
            if let Some(spec) = &mut lease.spec {
                spec.holder_identity = Some(String::new());
            }
            self.api.replace(&self.name, &PostParams::default(), &lease).await
        };
        if let Ok(Err(error)) = tokio::time::timeout(Duration::from_secs(2), given_back).await {
            tracing::warn!("the Lease {} cannot be given back, another takes it when it runs out: {error}", self.name);
        }
    }
}

/// Somebody else was faster.
fn won(answer: Result<Lease, kube::Error>) -> Result<bool, kube::Error> {
    match answer {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
        Err(error) => Err(error),
    }
}
