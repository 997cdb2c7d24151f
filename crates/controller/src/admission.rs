//! The webhook's answers, for what needs other objects: who is for this address and port already, whose address a virtual
//! one is, and whether the user may reach beyond the namespace. Schema and CEL have checked the rest.

use crate::judge::{Finding, reach, title};
use crate::right::Rights;
use crate::world::{CLUSTER, World};
use beeline_cluster::policy::{BalancingPolicySpec, LocalRedirectPolicySpec};
use beeline_cluster::{Claim, Convert, Converted};
use beeline_model::policy::{Policy, PolicyKind};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use kube::api::DynamicObject;
use kube::core::admission::{AdmissionRequest, AdmissionResponse, AdmissionReview, Operation};
use std::sync::{Arc, Mutex, PoisonError};

#[derive(Clone)]
pub struct Admission {
    rights: Arc<Rights>,
    world: Arc<Mutex<World>>,
}

/// We cannot tell now: the API server then does as the failurePolicy says.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Unready(pub String);

impl Admission {
    pub fn new(client: Client, world: Arc<Mutex<World>>) -> Admission {
        Admission { rights: Arc::new(Rights::new(client)), world }
    }

    pub async fn review(
        &self,
        review: AdmissionReview<DynamicObject>,
    ) -> Result<AdmissionReview<DynamicObject>, Unready> {
        let request: AdmissionRequest<DynamicObject> =
            review.try_into().map_err(|_| Unready("an AdmissionReview without a request".into()))?;
        let mut response = AdmissionResponse::from(&request);
        if let Err(why) = self.decide(&request).await? {
            tracing::info!(user = request.user_info.username, "refused: {why}");
            response = response.deny(why);
        }
        Ok(response.into_review())
    }

    /// `Err` of the inner: the message that the user sees.
    async fn decide(&self, request: &AdmissionRequest<DynamicObject>) -> Result<Result<(), String>, Unready> {
        let Some(object) = request.object.as_ref().filter(|_| request.operation != Operation::Delete) else {
            return Ok(Ok(()));
        };
        let Some(kind) = PolicyKind::from_text(&request.kind.kind) else { return Ok(Ok(())) };
        let policy = match read(kind, object, request) {
            Ok(policy) => policy,
            Err(why) => return Ok(Err(why)),
        };
        // What costs nothing first: nobody is asked about what cannot be anyway.
        if let Err(why) = self.ask(&policy, World::check_address)? {
            return Ok(Err(why));
        }
        // One from before our time, which cannot be read: all of it is new.
        let before = request.old_object.as_ref().and_then(|old| read(kind, old, request).ok());
        if let Some(reach) = reach(&policy, before.as_ref())
            && !self.rights.may_reach(&request.user_info).await?
        {
            let user = request.user_info.username.as_deref().unwrap_or("the user");
            return Ok(Err(no_right(&policy, &reach, user)));
        }
        self.ask(&policy, World::admit)
    }

    fn ask(
        &self,
        policy: &Policy,
        what: impl Fn(&World, &Policy) -> Result<(), Finding>,
    ) -> Result<Result<(), String>, Unready> {
        let world = self.world.lock().unwrap_or_else(PoisonError::into_inner);
        if !world.synced {
            return Err(Unready("the controller has not read the cluster yet".into()));
        }
        Ok(what(&world, policy).map_err(|finding| format!("{}: {finding}", title(&policy.name))))
    }
}

fn no_right(policy: &Policy, reach: &str, user: &str) -> String {
    format!(
        "{}: {reach}, and {user} has no right to that; an administrator gives it with the verb \"use\" on \"clusterscopes\" of the group beeline.dev in a ClusterRole",
        title(&policy.name),
    )
}

fn read(kind: PolicyKind, object: &DynamicObject, request: &AdmissionRequest<DynamicObject>) -> Result<Policy, String> {
    let meta = ObjectMeta {
        name: object.metadata.name.clone().or_else(|| Some(request.name.clone())).filter(|name| !name.is_empty()),
        namespace: object.metadata.namespace.clone().or_else(|| request.namespace.clone()),
        ..object.metadata.clone()
    };
    let meta = ObjectMeta { name: meta.name.or_else(|| Some("new".into())), ..meta };
    let spec = object.data.get("spec").cloned().unwrap_or_default();
    let mut convert = Convert::new(CLUSTER, Claim::default());
    let converted: Converted<Policy> = match kind {
        PolicyKind::LocalRedirect => {
            let spec: LocalRedirectPolicySpec = serde_json::from_value(spec).map_err(|bad| format!("spec: {bad}"))?;
            convert.local_redirect(&meta, &spec)
        }
        PolicyKind::Balancing => {
            let spec: BalancingPolicySpec = serde_json::from_value(spec).map_err(|bad| format!("spec: {bad}"))?;
            convert.balancing(&meta, &spec)
        }
    };
    converted.fact.map_err(|_| {
        let why: Vec<String> = converted.refusals.into_iter().map(|refusal| refusal.message).collect();
        why.join("; ")
    })
}
