//! Decides whether a user may create policies that reach beyond a namespace. The right is cluster-wide: an administrator of
//! one namespace may have every right in it, so the SubjectAccessReview names no namespace. Decisions are cached for a
//! short time, and reviews are rate-limited, because anyone who may write policies can cause them. Each user has a rate of
//! his own, so that nobody can use up the reviews of the others.

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
/// Reviews per second, of all users.
const RATE: f64 = 20.0;
const BURST: f64 = 40.0;
/// Reviews per second, of one user.
const USER_RATE: f64 = 1.0;
const USER_BURST: f64 = 5.0;
const MAX_USERS: usize = 4096;
/// After this time a user has his whole burst again.
const USER_IDLE: Duration = Duration::from_secs(5);

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

/// The reviews that users may cause.
struct ReviewBudget {
    total: RateLimiter,
    /// With the time of the last use.
    users: HashMap<String, (Instant, RateLimiter)>,
}

impl ReviewBudget {
    fn new(now: Instant) -> ReviewBudget {
        ReviewBudget { total: RateLimiter::new(RATE, BURST, now), users: HashMap::new() }
    }

    /// The user's own budget is checked first: a user who has none left uses nothing of the others'.
    fn try_take(&mut self, user: &str, now: Instant) -> bool {
        if self.users.len() >= MAX_USERS {
            self.users.retain(|_, (used, _)| now.saturating_duration_since(*used) < USER_IDLE);
        }
        if self.users.len() >= MAX_USERS && !self.users.contains_key(user) {
            return false;
        }
        let new = || (now, RateLimiter::new(USER_RATE, USER_BURST, now));
        let (used, limiter) = self.users.entry(user.to_owned()).or_insert_with(new);
        *used = now;
        limiter.try_take(now) && self.total.try_take(now)
    }
}

pub struct ScopeAuthorizer {
    api: Api<SubjectAccessReview>,
    cache: Mutex<DecisionCache>,
    budget: Mutex<ReviewBudget>,
}

impl ScopeAuthorizer {
    pub fn new(client: Client) -> ScopeAuthorizer {
        let budget = Mutex::new(ReviewBudget::new(Instant::now()));
        ScopeAuthorizer { api: Api::all(client), cache: Mutex::default(), budget }
    }

    pub async fn allows_cluster_scope(&self, user: &UserInfo) -> Result<bool, NotReady> {
        // The key holds all fields, because groups and extra fields can grant the right too.
        let key = serde_json::to_string(user).map_err(|error| NotReady(format!("invalid userInfo: {error}")))?;
        if let Some(allowed) = self.cache().get(&key, Instant::now()) {
            return Ok(allowed);
        }
        if !self.try_take(user.username.as_deref().unwrap_or_default()) {
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

    fn try_take(&self, user: &str) -> bool {
        self.budget.lock().unwrap_or_else(PoisonError::into_inner).try_take(user, Instant::now())
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
    fn a_user_cannot_use_up_the_reviews_of_others() {
        let now = Instant::now();
        let mut budget = ReviewBudget::new(now);
        let granted = (0..1000).filter(|_| budget.try_take("mallory", now)).count();
        assert_eq!(granted, USER_BURST as usize);
        assert!(budget.try_take("alice", now));
        let later = now + USER_IDLE;
        assert_eq!((0..1000).filter(|_| budget.try_take("mallory", later)).count(), USER_BURST as usize);
        let granted = (0..2 * MAX_USERS).filter(|n| budget.try_take(&n.to_string(), later)).count();
        assert!(granted <= BURST as usize && budget.users.len() <= MAX_USERS);
        assert!(budget.try_take("alice", later + Duration::from_secs(3600)), "idle users make room");
    }

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
