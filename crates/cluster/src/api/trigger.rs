//! The time at which the change behind an EndpointSlice happened, as its controller recorded it. The programming
//! latency is measured from this time, as in kube-proxy.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use std::time::SystemTime;

pub(crate) const ANNOTATION: &str = "endpoints.kubernetes.io/last-change-trigger-time";

pub(crate) fn trigger_time(meta: &ObjectMeta) -> Option<SystemTime> {
    let text = meta.annotations.as_ref()?.get(ANNOTATION)?;
    text.parse::<jiff::Timestamp>().ok().map(SystemTime::from)
}
