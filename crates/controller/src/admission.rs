//! The webhook's answers, for what needs other objects: who is for this address and port already, whose address a virtual
//! one is, and whether the user may reach beyond the namespace. Schema and CEL have checked the rest.

use crate::judge::{reach, title};
use crate::world::{CLUSTER, World};
use beeline_cluster::policy::{BalancingPolicySpec, LocalRedirectPolicySpec};
use beeline_cluster::{Claim, Convert, Converted};
use beeline_model::policy::{Policy, PolicyKind};
use k8s_openapi::api::authentication::v1::UserInfo;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DynamicObject, PostParams};
use kube::core::admission::{AdmissionRequest, AdmissionResponse, AdmissionReview, Operation};
use kube::{Api, Client};
use std::sync::{Arc, Mutex, PoisonError};

#[derive(Clone)]
pub struct Admission {
    client: Client,
    world: Arc<Mutex<World>>,
}

/// We cannot tell now: the API server then does as the failurePolicy says.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Unready(String);

impl Admission {
    pub fn new(client: Client, world: Arc<Mutex<World>>) -> Admission {
        Admission { client, world }
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
        if let Some(reach) = reach(&policy)
            && let Err(why) = self.may_reach(&request.user_info, &policy, &reach).await?
        {
            return Ok(Err(why));
        }
        let world = self.world.lock().unwrap_or_else(PoisonError::into_inner);
        if !world.synced {
            return Err(Unready("the controller has not read the cluster yet".into()));
        }
        Ok(world.admit(&policy).map_err(|finding| format!("{}: {finding}", title(&policy.name))))
    }

    /// A right to the whole cluster: asked without a namespace, since an administrator of one namespace may have every right
    /// in it.
    async fn may_reach(&self, user: &UserInfo, policy: &Policy, reach: &str) -> Result<Result<(), String>, Unready> {
        let asked = SubjectAccessReview {
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
        };
        let api: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let answer = api.create(&PostParams::default(), &asked).await;
        let answer = answer.map_err(|error| Unready(format!("the right to reach beyond a namespace: {error}")))?;
        if answer.status.is_some_and(|status| status.allowed) {
            return Ok(Ok(()));
        }
        Ok(Err(format!(
            "{}: {reach}, and {} has no right to that; an administrator gives it with the verb \"use\" on \"clusterscopes\" of the group beeline.dev in a ClusterRole",
            title(&policy.name),
            user.username.as_deref().unwrap_or("the user"),
        )))
    }
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
