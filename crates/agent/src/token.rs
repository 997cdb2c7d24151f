//! The tokens of the clusters that this host has joined: each is kept alive beside its source.

use crate::settings::Origin;
use beeline_cluster::Access;
use beeline_join::{Credential, Renewal, Report, Standing};
use beeline_model::Name;
use jiff::Timestamp;
use serde::Serialize;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch::Receiver;

#[derive(Clone, Debug, Default)]
pub struct Tokens(Arc<Mutex<BTreeMap<Name, Receiver<Standing>>>>);

/// As `status` has it.
#[derive(Clone, Debug, Serialize)]
pub struct Token {
    pub cluster: String,
    #[serde(flatten)]
    pub report: Report,
}

impl Tokens {
    /// Keeps the token of a cluster alive, until it is dropped. Other kubeconfigs than those of `beeline join`, and the
    /// accounts of pods, have somebody else who looks after them.
    pub async fn keep(self, cluster: Name, origin: Origin, share: f64) -> Infallible {
        let renewal = kubeconfig(&origin).and_then(|path| Renewal::of(path, share).ok());
        let Some((renewal, standing)) = renewal else { return std::future::pending().await };
        self.all().insert(cluster.clone(), standing);
        let entry = Entry { tokens: self, cluster };
        renewal.run().await;
        drop(entry);
        std::future::pending().await
    }

    /// `error`: what reading a cluster fails with, if it does.
    pub fn reports(&self, error: impl Fn(&str) -> Option<String>) -> Vec<Token> {
        let now = Timestamp::now();
        let report = |(cluster, standing): (&Name, &Receiver<Standing>)| Token {
            cluster: cluster.to_string(),
            report: standing.borrow().report(error(cluster).as_deref(), now),
        };
        self.all().iter().map(report).collect()
    }

    /// When each ends, in seconds since 1970.
    pub fn ends(&self) -> Vec<(String, i64)> {
        let end = |(cluster, standing): (&Name, &Receiver<Standing>)| {
            let end = standing.borrow().expires()?;
            Some((cluster.to_string(), end))
        };
        self.all().iter().filter_map(end).collect()
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<Name, Receiver<Standing>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Which cluster the credentials are of, where `beeline join` wrote them.
pub fn uid(origin: &Origin) -> Option<Box<str>> {
    let credential = Credential::open(&kubeconfig(origin)?).ok()?;
    Some(credential.mark.uid.into())
}

fn kubeconfig(origin: &Origin) -> Option<PathBuf> {
    let Origin::Server(server) = origin else { return None };
    if let Access::Kubeconfig { path, .. } = &server.access { Some(path.clone()) } else { None }
}

/// A cluster that is followed no more has no token to tell of.
struct Entry {
    tokens: Tokens,
    cluster: Name,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.tokens.all().remove(&self.cluster);
    }
}
