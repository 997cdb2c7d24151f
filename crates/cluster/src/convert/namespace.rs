//! Converts v1 Namespaces: their labels, which the `namespaceSelector` of a policy selects by, and one of which excludes the
//! pods of the namespace.

use super::name::is_label;
use super::{Converted, Converter, RESOLVE, RefusalCollector, label};
use crate::kind::ResourceKind;
use beeline_model::object;
use beeline_model::refusal::RefusalReason;
use k8s_openapi::api::core::v1::Namespace;

impl Converter {
    pub fn namespace(&mut self, namespace: &Namespace) -> Converted<object::Namespace> {
        let mut refusals = RefusalCollector::new(ResourceKind::Namespace, &namespace.metadata);
        if let Some(other) = label(&namespace.metadata, RESOLVE).filter(|value| !["on", "off"].contains(value)) {
            let message = format!("label {RESOLVE}: {other:?} is neither \"on\" nor \"off\"; read as \"on\"");
            refusals.refuse(RefusalReason::BadAnnotation, message);
        }
        let name = namespace.metadata.name.as_deref().filter(|name| is_label(name));
        let result = name.ok_or_else(|| refusals.refuse_name()).map(|name| object::Namespace {
            cluster: self.cluster.clone(),
            name: self.names.intern(name),
            labels: self.labels(&namespace.metadata),
        });
        refusals.finish(result)
    }
}
