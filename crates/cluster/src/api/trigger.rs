//! When the change that a slice tells of happened, as its controller saw it: what kube-proxy's programming latency is
//! measured from.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use std::time::SystemTime;

pub(crate) const ANNOTATION: &str = "endpoints.kubernetes.io/last-change-trigger-time";

pub(crate) fn time(meta: &ObjectMeta) -> Option<SystemTime> {
    let text = meta.annotations.as_ref()?.get(ANNOTATION)?;
    text.parse::<jiff::Timestamp>().ok().map(SystemTime::from)
}
