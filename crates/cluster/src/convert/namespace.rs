//! v1 Namespace to fact: its labels, which `namespaceSelector` asks for.

use super::name::is_label;
use super::{Convert, Converted, Report};
use beeline_model::fact;
use k8s_openapi::api::core::v1::Namespace;

impl Convert {
    pub fn namespace(&mut self, object: &Namespace) -> Converted<fact::Namespace> {
        let mut report = Report::new("Namespace", &object.metadata);
        let name = object.metadata.name.as_deref().filter(|name| is_label(name));
        let fact = name.ok_or_else(|| report.bad_name()).map(|name| fact::Namespace {
            cluster: self.cluster.clone(),
            name: self.names.word(name),
            labels: self.labels(&object.metadata),
        });
        report.close(fact)
    }
}
