//! Leader election among the replicas: the holder of a Lease writes. It is implemented here, because the kube client
//! has no leader election, and a single Lease with four cases needs little code. Whether the Lease of another holder
//! has expired is decided by this replica's own clock (the Lease has not changed for its whole duration), never by
//! comparing the clocks of two hosts.

use crate::settings::ControllerSettings;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Api, PostParams};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// The last observed version of the Lease.
struct ObservedLease {
    version: Option<String>,
    since: Instant,
}

pub struct LeaderElection {
    api: Api<Lease>,
    name: String,
    identity: String,
    duration: Duration,
    observed: Option<ObservedLease>,
    /// When this replica last acquired or renewed the Lease.
    renewed: Option<Instant>,
}

impl LeaderElection {
    pub fn new(client: kube::Client, settings: &ControllerSettings) -> LeaderElection {
        LeaderElection {
            api: Api::namespaced(client, &settings.namespace),
            name: settings.lease.clone(),
            identity: settings.identity.clone(),
            duration: settings.lease_duration,
            observed: None,
            renewed: None,
        }
    }

    /// Runs until `stop`. Then the Lease is released, so that the next leader need not wait.
    pub async fn run(mut self, leader: watch::Sender<bool>, mut stop: watch::Receiver<bool>) -> anyhow::Result<()> {
        loop {
            let leading = self.round().await;
            if leader.send_replace(leading) != leading {
                match leading {
                    true => tracing::info!(identity = self.identity, lease = self.name, "became the leader"),
                    false => tracing::info!(identity = self.identity, lease = self.name, "lost the leadership"),
                }
            }
            tokio::select! {
                () = tokio::time::sleep(self.duration / 5) => {}
                _ = stop.wait_for(|stop| *stop) => break,
            }
        }
        if leader.send_replace(false) {
            self.release().await;
        }
        // The first task to end ends the process, which must not happen before the webhook has drained.
        std::future::pending().await
    }

    /// Returns whether this replica leads. A replica that cannot renew stops leading at two thirds of the duration,
    /// well before another replica may take the Lease.
    async fn round(&mut self) -> bool {
        match tokio::time::timeout(self.duration / 3, self.acquire()).await {
            Ok(Ok(true)) => self.renewed = Some(Instant::now()),
            Ok(Ok(false)) => self.renewed = None,
            Ok(Err(error)) => tracing::warn!(lease = self.name, %error, "cannot renew the Lease, retrying"),
            Err(_) => tracing::warn!(lease = self.name, error = "no response", "cannot renew the Lease, retrying"),
        }
        self.renewed.is_some_and(|at| at.elapsed() < self.duration * 2 / 3)
    }

    /// Acquires or renews the Lease. `false` means that another replica holds it.
    async fn acquire(&mut self) -> Result<bool, kube::Error> {
        let params = PostParams::default();
        let Some(lease) = self.api.get_opt(&self.name).await? else {
            let metadata = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
            let lease = self.held_lease(Lease { metadata, spec: None }, Timestamp::now());
            return is_acquired(self.api.create(&params, &lease).await);
        };
        let holder = holder(&lease);
        if holder != self.identity && !holder.is_empty() && !self.is_expired(&lease) {
            return Ok(false);
        }
        // The object has the resourceVersion that was read: of two replicas that try, one succeeds.
        let lease = self.held_lease(lease, Timestamp::now());
        is_acquired(self.api.replace(&self.name, &params, &lease).await)
    }

    fn is_expired(&mut self, lease: &Lease) -> bool {
        let version = &lease.metadata.resource_version;
        match &self.observed {
            Some(observed) if observed.version == *version => observed.since.elapsed() > self.duration,
            _ => {
                self.observed = Some(ObservedLease { version: version.clone(), since: Instant::now() });
                false
            }
        }
    }

    fn held_lease(&self, before: Lease, now: Timestamp) -> Lease {
        held_lease(before, &self.identity, self.duration, now)
    }

    async fn release(&self) {
        let released = async {
            let mut lease = self.api.get(&self.name).await?;
            if let Some(spec) = &mut lease.spec {
                spec.holder_identity = Some(String::new());
            }
            self.api.replace(&self.name, &PostParams::default(), &lease).await
        };
        if let Ok(Err(error)) = tokio::time::timeout(Duration::from_secs(2), released).await {
            tracing::warn!(lease = self.name, %error, "cannot release the Lease, another replica leads when it expires");
        }
    }
}

fn holder(lease: &Lease) -> &str {
    lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default()
}

/// The Lease as this replica writes it. `acquireTime` and `leaseTransitions` change only when the holder changes.
fn held_lease(before: Lease, identity: &str, duration: Duration, now: Timestamp) -> Lease {
    let renewal = holder(&before) == identity;
    let is_new = before.spec.is_none();
    let old = before.spec.unwrap_or_default();
    let acquired = old.acquire_time.filter(|_| renewal).unwrap_or(MicroTime(now));
    let spec = LeaseSpec {
        holder_identity: Some(identity.to_owned()),
        lease_duration_seconds: i32::try_from(duration.as_secs().max(1)).ok(),
        acquire_time: Some(acquired),
        renew_time: Some(MicroTime(now)),
        lease_transitions: Some(old.lease_transitions.unwrap_or(0) + i32::from(!renewal && !is_new)),
        ..LeaseSpec::default()
    };
    Lease { metadata: ObjectMeta { managed_fields: None, ..before.metadata }, spec: Some(spec) }
}

/// A conflict means that another replica was faster.
fn is_acquired(written: Result<Lease, kube::Error>) -> Result<bool, kube::Error> {
    match written {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn hold(before: Lease, identity: &str, second: i64) -> Lease {
        held_lease(before, identity, Duration::from_secs(15), at(second))
    }

    /// acquireTime, renewTime and leaseTransitions.
    fn times(lease: &Lease) -> (i64, i64, i32) {
        let spec = lease.spec.as_ref().unwrap();
        let seconds = |time: &Option<MicroTime>| time.as_ref().unwrap().0.as_second();
        (seconds(&spec.acquire_time), seconds(&spec.renew_time), spec.lease_transitions.unwrap())
    }

    #[test]
    fn acquire_time_changes_only_when_the_holder_changes() {
        let created = hold(Lease::default(), "a", 100);
        assert_eq!(times(&created), (100, 100, 0));
        let renewed = hold(created, "a", 103);
        assert_eq!(times(&renewed), (100, 103, 0), "a renewal keeps acquireTime");
        let taken = hold(renewed, "b", 120);
        assert_eq!((holder(&taken), times(&taken)), ("b", (120, 120, 1)), "another holder");
        let mut released = hold(taken, "b", 123);
        released.spec.as_mut().unwrap().holder_identity = Some(String::new());
        let acquired_again = hold(released, "b", 130);
        assert_eq!(times(&acquired_again), (130, 130, 2), "after a release the Lease is acquired anew");
    }
}
