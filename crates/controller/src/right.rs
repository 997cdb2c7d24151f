//! Whether a user may reach beyond a namespace. A right to the whole cluster: asked without a namespace, since an
//! administrator of one namespace may have every right in it. An answer holds a moment, and there is a limit to how often
//! the API server is asked: every question is a write to it that whoever may write policies causes.

use crate::admission::Unready;
use crate::limit::Limit;
use k8s_openapi::api::authentication::v1::UserInfo;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::api::PostParams;
use kube::{Api, Client};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const HOLDS: Duration = Duration::from_secs(10);
/// Answers that are kept.
const KEPT: usize = 1024;
/// Questions a second.
const RATE: f64 = 20.0;

#[derive(Debug, Default)]
struct Answers(HashMap<String, (Instant, bool)>);

impl Answers {
    fn get(&self, who: &str, now: Instant) -> Option<bool> {
        self.0.get(who).filter(|(until, _)| now < *until).map(|(_, may)| *may)
    }

    fn put(&mut self, who: String, may: bool, now: Instant) {
        if self.0.len() >= KEPT {
            self.0.retain(|_, (until, _)| now < *until);
        }
        if self.0.len() < KEPT {
            self.0.insert(who, (now + HOLDS, may));
        }
    }
}

pub struct Rights {
    api: Api<SubjectAccessReview>,
    answers: Mutex<Answers>,
    limit: Mutex<Limit>,
}

impl Rights {
    pub fn new(client: Client) -> Rights {
        Rights { api: Api::all(client), answers: Mutex::default(), limit: Mutex::new(Limit::new(RATE, Instant::now())) }
    }

    pub async fn may_reach(&self, user: &UserInfo) -> Result<bool, Unready> {
        // All of it: groups and extra may be what the right hangs on.
        let who = serde_json::to_string(user).map_err(|bad| Unready(format!("the user: {bad}")))?;
        if let Some(may) = self.answers().get(&who, Instant::now()) {
            return Ok(may);
        }
        if !self.may_ask() {
            return Err(Unready("too many users want to reach beyond their namespaces at once: try again".into()));
        }
        let answer = self.api.create(&PostParams::default(), &question(user)).await;
        let answer = answer.map_err(|error| Unready(format!("the right to reach beyond a namespace: {error}")))?;
        let may = answer.status.is_some_and(|status| status.allowed);
        self.answers().put(who, may, Instant::now());
        Ok(may)
    }

    fn answers(&self) -> std::sync::MutexGuard<'_, Answers> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn may_ask(&self) -> bool {
        let mut limit = self.limit.lock().unwrap_or_else(PoisonError::into_inner);
        limit.refill(RATE, Instant::now());
        limit.take()
    }
}

fn question(user: &UserInfo) -> SubjectAccessReview {
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
    fn an_answer_holds_a_moment() {
        let (mut answers, now) = (Answers::default(), Instant::now());
        answers.put("alice".into(), true, now);
        assert_eq!((answers.get("alice", now), answers.get("bob", now)), (Some(true), None));
        assert_eq!(answers.get("alice", now + HOLDS), None);
        (0..2 * KEPT).for_each(|n| answers.put(n.to_string(), false, now));
        assert_eq!(answers.0.len(), KEPT);
        answers.put("late".into(), true, now + HOLDS);
        assert_eq!(answers.0.len(), 1, "what is old makes room");
    }
}
