//! Facts as a source tells them, and among them what has only a name: headless and ExternalName Services, those of other
//! proxies, the slices of headless ones. These are told only where names are answered.

use super::name::{is_label, is_subdomain};
use super::{Convert, Converted, HEADLESS, Report, SERVICE_NAME, Unserved, label, service};
use beeline_model::Name;
use beeline_model::fact::{Fact, NamedService, Published};
use k8s_openapi::api::core::v1::{Service, ServiceSpec};
use k8s_openapi::api::discovery::v1::EndpointSlice;

impl Convert {
    pub fn service_fact(&mut self, object: &Service) -> Converted<Fact> {
        let served = self.service(object);
        match served.fact {
            Err(Unserved::Skipped) if self.claim.names => self.named_service(object),
            fact => Converted { fact: fact.map(Fact::Service), refusals: served.refusals },
        }
    }

    fn named_service(&mut self, object: &Service) -> Converted<Fact> {
        let mut report = Report::new("Service", &object.metadata);
        let fact = self.publish(object, &mut report);
        report.close(fact.map(Fact::NamedService))
    }

    fn publish(&mut self, object: &Service, report: &mut Report) -> Result<NamedService, Unserved> {
        let spec = object.spec.as_ref().ok_or(Unserved::Skipped)?;
        let published = published(spec, report)?;
        let name = report.service_name(self)?;
        // A name needs no port.
        let has_ports = spec.ports.as_ref().is_some_and(|ports| !ports.is_empty());
        let ports = if has_ports { self.service_ports(spec, report) } else { [].into() };
        Ok(NamedService { name, published, ports })
    }

    pub fn slice_fact(&mut self, object: &EndpointSlice) -> Converted<Fact> {
        if label(&object.metadata, HEADLESS).is_none() || !self.claim.names {
            let Converted { fact, refusals } = self.slice(object);
            return Converted { fact: fact.map(Fact::Slice), refusals };
        }
        let mut report = Report::new("EndpointSlice", &object.metadata);
        let fact = self.cut(object, &mut report);
        report.close(fact.map(Fact::NamedSlice))
    }

    /// The same where a slice of no Service is nothing to speak of: in a cluster they belong to others.
    pub(crate) fn owned_slice(&mut self, object: &EndpointSlice) -> Converted<Fact> {
        match label(&object.metadata, SERVICE_NAME) {
            None | Some("") => Converted { fact: Err(Unserved::Skipped), refusals: Vec::new() },
            Some(_) => self.slice_fact(object),
        }
    }

    /// An endpoint's own name below its Service's. A bad one costs only itself.
    pub(super) fn hostname(&mut self, field: &str, text: Option<&str>, report: &mut Report) -> Option<Name> {
        let text = text.filter(|text| self.claim.names && !text.is_empty())?;
        let checked = if is_label(text) { Ok(text) } else { Err(format!("{text:?} is not a DNS-1123 label")) };
        report.keep("badHostname", field, checked).map(|text| self.names.word(text))
    }
}

fn published(spec: &ServiceSpec, report: &mut Report) -> Result<Published, Unserved> {
    if spec.type_.as_deref() == Some("ExternalName") {
        return alias(spec, report);
    }
    match spec.cluster_ip.as_deref().unwrap_or_default() {
        "" => Err(Unserved::Skipped),
        "None" => Ok(Published::Headless { unready: spec.publish_not_ready_addresses == Some(true) }),
        _ => service::cluster_ips(spec, report).map(Published::Addresses),
    }
}

fn alias(spec: &ServiceSpec, report: &mut Report) -> Result<Published, Unserved> {
    let text = spec.external_name.as_deref().unwrap_or_default().trim_end_matches('.').to_ascii_lowercase();
    if is_subdomain(&text) {
        Ok(Published::Alias(text.into()))
    } else {
        Err(report.stop("badExternalName", format!("spec.externalName: {text:?} is no DNS name")))
    }
}
