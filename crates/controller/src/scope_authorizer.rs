//! Decides whether a user may create policies that reach beyond a namespace. The right is cluster-wide: an administrator of
//! one namespace may have every right in it, so the SubjectAccessReview names no namespace. Decisions are cached for a
//! short time, and reviews are rate-limited, because anyone who may write policies can cause them.

use crate::admission::NotReady;
use beeline_cluster::RateLimiter;
use k8s_openapi::api::authentication::v1::UserInfo;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::api::PostParams;
use kube::{Api, Client};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const CACHE_LIFETIME: Duration = Duration::from_secs(10);
const MAX_CACHED: usize = 1024;
/// Reviews per second.
const RATE: f64 = 20.0;
const BURST: f64 = 40.0;

/// Decisions by user, each with its expiry.
#[derive(Debug, Default)]
struct DecisionCache(HashMap<String, (Instant, bool)>);

impl DecisionCache {
    fn get(&self, user: &str, now: Instant) -> Option<bool> {
        self.0.get(user).filter(|(expires, _)| now < *expires).map(|(_, allowed)| *allowed)
    }

    fn insert(&mut self, user: String, allowed: bool, now: Instant) {
        if self.0.len() >= MAX_CACHED {
            self.0.retain(|_, (expires, _)| now < *expires);
        }
        if self.0.len() < MAX_CACHED {
            self.0.insert(user, (now + CACHE_LIFETIME, allowed));
        }
    }
}

pub struct ScopeAuthorizer {
    api: Api<SubjectAccessReview>,
    cache: Mutex<DecisionCache>,
    limiter: Mutex<RateLimiter>,
}

impl ScopeAuthorizer {
    pub fn new(client: Client) -> ScopeAuthorizer {
        let limiter = Mutex::new(RateLimiter::new(RATE, BURST, Instant::now()));
        ScopeAuthorizer { api: Api::all(client), cache: Mutex::default(), limiter }
    }

    pub async fn allows_cluster_scope(&self, user: &UserInfo) -> Result<bool, NotReady> {
        // The key holds all fields, because groups and extra fields can grant the right too.
        let key = serde_json::to_string(user).map_err(|error| NotReady(format!("invalid userInfo: {error}")))?;
        if let Some(allowed) = self.cache().get(&key, Instant::now()) {
            return Ok(allowed);
        }
        if !self.try_take_token() {
            return Err(NotReady("too many requests for policies that reach beyond a namespace: try again".into()));
        }
        let review = self.api.create(&PostParams::default(), &access_review(user)).await;
        let review = review.map_err(|error| NotReady(format!("the SubjectAccessReview failed: {error}")))?;
        let allowed = review.status.is_some_and(|status| status.allowed);
        self.cache().insert(key, allowed, Instant::now());
        Ok(allowed)
    }

    fn cache(&self) -> std::sync::MutexGuard<'_, DecisionCache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn try_take_token(&self) -> bool {
        self.limiter.lock().unwrap_or_else(PoisonError::into_inner).try_take(Instant::now())
    }
}

fn access_review(user: &UserInfo) -> SubjectAccessReview {
    SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: user.username.clone(),
            groups: user.groups.clone(),
            uid: user.uid.clone(),
            extra: user.extra.clone(),
            resource_attributes: Some(ResourceAttributes {
                group: Some("beeline.dev".into()),
                resource: Some("clusterscopes".into()),
                verb: Some("use".into()),
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decisions_expire_and_the_cache_is_bounded() {
        let (mut cache, now) = (DecisionCache::default(), Instant::now());
        cache.insert("alice".into(), true, now);
        assert_eq!((cache.get("alice", now), cache.get("bob", now)), (Some(true), None));
        assert_eq!(cache.get("alice", now + CACHE_LIFETIME), None);
        (0..2 * MAX_CACHED).for_each(|n| cache.insert(n.to_string(), false, now));
        assert_eq!(cache.0.len(), MAX_CACHED);
        cache.insert("late".into(), true, now + CACHE_LIFETIME);
        assert_eq!(cache.0.len(), 1, "expired decisions make room");
    }
}
