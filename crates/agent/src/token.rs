//! Renews the tokens of the clusters that this host has joined, each beside the task that reads the cluster.

use crate::settings::SourceSettings;
use beeline_api::TokenStatus;
use beeline_cluster::Access;
use beeline_join::{Credential, DEFAULT_RENEW_FRACTION, TokenRenewer, TokenReport, TokenState};
use beeline_model::Name;
use jiff::Timestamp;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch::Receiver;

#[derive(Clone, Debug, Default)]
pub struct TokenRenewals(Arc<Mutex<BTreeMap<Name, Receiver<TokenState>>>>);

impl TokenRenewals {
    /// Renews the token of a cluster until the future is dropped. Does nothing for a kubeconfig that `beeline join` did
    /// not write and for the ServiceAccount of a pod: other programs renew those.
    pub async fn renew(self, cluster: Name, source: SourceSettings, fraction: Option<f64>) -> Infallible {
        let fraction = fraction.unwrap_or(DEFAULT_RENEW_FRACTION);
        let renewer = kubeconfig(&source).and_then(|path| TokenRenewer::new(path, fraction).ok());
        let Some((renewer, state)) = renewer else { return std::future::pending().await };
        self.all().insert(cluster.clone(), state);
        let registration = Registration { renewals: self, cluster };
        renewer.run().await;
        drop(registration);
        std::future::pending().await
    }

    /// `error` returns why the last request to a cluster failed, if it did.
    pub fn reports(&self, error: impl Fn(&str) -> Option<String>) -> Vec<TokenStatus> {
        let now = Timestamp::now();
        let report = |(cluster, state): (&Name, &Receiver<TokenState>)| {
            let TokenReport { account, expires, renews, error, rejoin } =
                state.borrow().report(error(cluster).as_deref(), now);
            TokenStatus { cluster: cluster.to_string(), account, expires, renews, error, rejoin }
        };
        self.all().iter().map(report).collect()
    }

    /// The expiry of each token, in seconds since the Unix epoch.
    pub fn expiry_times(&self) -> Vec<(String, i64)> {
        let expiry =
            |(cluster, state): (&Name, &Receiver<TokenState>)| Some((cluster.to_string(), state.borrow().expires()?));
        self.all().iter().filter_map(expiry).collect()
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<Name, Receiver<TokenState>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The UID of the cluster that the credentials belong to, if `beeline join` wrote them.
pub fn credential_uid(source: &SourceSettings) -> Option<Box<str>> {
    let credential = Credential::open(&kubeconfig(source)?).ok()?;
    Some(credential.extension.uid.into())
}

fn kubeconfig(source: &SourceSettings) -> Option<PathBuf> {
    let SourceSettings::Server(server) = source else { return None };
    if let Access::Kubeconfig { path, .. } = &server.access { Some(path.clone()) } else { None }
}

/// Removes the token from the status when its cluster is not read any more.
struct Registration {
    renewals: TokenRenewals,
    cluster: Name,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.renewals.all().remove(&self.cluster);
    }
}
