//! The admission webhook's decisions, for checks that need other objects: whether another policy matches the same address
//! and port, whether a virtual address belongs to another object, and whether the user may reach beyond the namespace.
//! The CRD's schema and CEL rules have checked the rest.

use crate::cluster_state::{CLUSTER, SharedState};
use crate::scope_authorizer::ScopeAuthorizer;
use crate::validation::{cluster_scope, title};
use beeline_cluster::policy::{BalancingPolicySpec, LocalRedirectPolicySpec};
use beeline_cluster::{Converted, Converter, ServiceFilter};
use beeline_model::policy::{Policy, PolicyKind};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use kube::api::DynamicObject;
use kube::core::admission::{AdmissionRequest, AdmissionResponse, AdmissionReview, Operation};
use std::sync::Arc;

#[derive(Clone)]
pub struct AdmissionHandler {
    authorizer: Arc<ScopeAuthorizer>,
    state: SharedState,
}

/// No decision is possible now. The API server then acts by the webhook's failurePolicy.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NotReady(pub String);

/// `Err` holds the message for the user whose request is denied.
type Decision = Result<(), String>;

impl AdmissionHandler {
    pub fn new(client: Client, state: SharedState) -> AdmissionHandler {
        AdmissionHandler { authorizer: Arc::new(ScopeAuthorizer::new(client)), state }
    }

    pub async fn review(
        &self,
        review: AdmissionReview<DynamicObject>,
    ) -> Result<AdmissionReview<DynamicObject>, NotReady> {
        let request: AdmissionRequest<DynamicObject> =
            review.try_into().map_err(|_| NotReady("the AdmissionReview has no request".into()))?;
        let mut response = AdmissionResponse::from(&request);
        if let Err(reason) = self.decide(&request).await? {
            tracing::info!(user = request.user_info.username, reason, "denied a policy");
            response = response.deny(reason);
        }
        Ok(response.into_review())
    }

    async fn decide(&self, request: &AdmissionRequest<DynamicObject>) -> Result<Decision, NotReady> {
        let Some(object) = request.object.as_ref().filter(|_| request.operation != Operation::Delete) else {
            return Ok(Ok(()));
        };
        let Some(kind) = PolicyKind::from_text(&request.kind.kind) else { return Ok(Ok(())) };
        let policy = match parse_policy(kind, object, request) {
            Ok(policy) => policy,
            Err(reason) => return Ok(Err(reason)),
        };
        if !self.state.with(|state| state.synced) {
            return Err(NotReady("the controller has not synced with the cluster yet".into()));
        }
        // The right comes first: a user without it must not learn who owns an address. An old object
        // that cannot be parsed counts as absent, so everything in the new one counts as new.
        let before = request.old_object.as_ref().and_then(|old| parse_policy(kind, old, request).ok());
        if let Some(scope) = cluster_scope(&policy, before.as_ref())
            && !self.authorizer.allows_cluster_scope(&request.user_info).await?
        {
            let user = request.user_info.username.as_deref().unwrap_or("the user");
            return Ok(Err(missing_right(&policy, &scope, user)));
        }
        let checked = self.state.with(|state| state.check_admission(&policy));
        Ok(checked.map_err(|finding| format!("{}: {finding}", title(&policy.name))))
    }
}

fn missing_right(policy: &Policy, scope: &str, user: &str) -> String {
    format!(
        "{}: {scope}, and {user} has no right to that; an administrator grants it with the verb \"use\" on \
         \"clusterscopes\" of the group beeline.dev in a ClusterRole",
        title(&policy.name),
    )
}

pub(crate) fn parse_policy(
    kind: PolicyKind,
    object: &DynamicObject,
    request: &AdmissionRequest<DynamicObject>,
) -> Result<Policy, String> {
    let meta = ObjectMeta {
        name: object.metadata.name.clone().or_else(|| Some(request.name.clone())).filter(|name| !name.is_empty()),
        namespace: object.metadata.namespace.clone().or_else(|| request.namespace.clone()),
        ..object.metadata.clone()
    };
    let meta = ObjectMeta { name: meta.name.or_else(|| Some("new".into())), ..meta };
    let spec = object.data.get("spec").cloned().unwrap_or_default();
    let mut converter = Converter::new(CLUSTER, ServiceFilter::default());
    let converted: Converted<Policy> = match kind {
        PolicyKind::LocalRedirect => {
            let spec: LocalRedirectPolicySpec =
                serde_json::from_value(spec).map_err(|error| format!("invalid spec: {error}"))?;
            converter.local_redirect(&meta, &spec)
        }
        PolicyKind::Balancing => {
            let spec: BalancingPolicySpec =
                serde_json::from_value(spec).map_err(|error| format!("invalid spec: {error}"))?;
            converter.balancing(&meta, &spec)
        }
    };
    converted.result.map_err(|_| {
        let messages: Vec<String> = converted.refusals.into_iter().map(|refusal| refusal.message).collect();
        messages.join("; ")
    })
}
