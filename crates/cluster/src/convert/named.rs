//! Converts Services and slices, including those that are only needed for DNS: headless and ExternalName Services,
//! Services of other proxies, and the slices of headless Services. The latter are converted only if DNS is in use.

use super::name::{is_label, is_subdomain};
use super::{Converted, Converter, HEADLESS, RefusalCollector, SERVICE_NAME, Unserved, label, service};
use crate::kind::ResourceKind;
use beeline_model::Name;
use beeline_model::object::{NamedService, Object, Published};
use beeline_model::refusal::RefusalReason;
use k8s_openapi::api::core::v1::{Service, ServiceSpec};
use k8s_openapi::api::discovery::v1::EndpointSlice;

impl Converter {
    pub(crate) fn service_object(&mut self, object: &Service) -> Converted<Object> {
        let served = self.service(object);
        match served.result {
            Err(Unserved::Skipped) if self.filter.dns_names => self.named_service(object),
            _ => served.map(Object::Service),
        }
    }

    fn named_service(&mut self, object: &Service) -> Converted<Object> {
        let mut refusals = RefusalCollector::new(ResourceKind::Service, &object.metadata);
        let result = self.parse_named_service(object, &mut refusals);
        refusals.finish_object(result, Object::NamedService)
    }

    fn parse_named_service(
        &mut self,
        object: &Service,
        refusals: &mut RefusalCollector,
    ) -> Result<NamedService, Unserved> {
        let spec = object.spec.as_ref().ok_or(Unserved::Skipped)?;
        let published = parse_published(spec, refusals)?;
        let name = refusals.service_name(self)?;
        // A DNS name needs no port, so a Service without ports is not refused.
        let has_ports = spec.ports.as_ref().is_some_and(|ports| !ports.is_empty());
        let ports = if has_ports { self.service_ports(spec, refusals) } else { [].into() };
        Ok(NamedService { name, published, ports })
    }

    pub(crate) fn slice_object(&mut self, object: &EndpointSlice) -> Converted<Object> {
        if label(&object.metadata, HEADLESS).is_none() || !self.filter.dns_names {
            return self.slice(object).map(Object::Slice);
        }
        let mut refusals = RefusalCollector::new(ResourceKind::EndpointSlice, &object.metadata);
        let result = self.parse_slice(object, &mut refusals);
        refusals.finish_object(result, Object::NamedSlice)
    }

    /// Like `slice_object`, but a slice without a Service is skipped instead of refused. In a cluster such slices
    /// belong to other controllers.
    pub(crate) fn slice_object_of_service(&mut self, object: &EndpointSlice) -> Converted<Object> {
        match label(&object.metadata, SERVICE_NAME) {
            None | Some("") => Converted::skipped(),
            Some(_) => self.slice_object(object),
        }
    }

    /// The hostname of an endpoint, its DNS label below the name of the Service. An invalid hostname is refused, and
    /// the endpoint is kept.
    pub(super) fn hostname(
        &mut self,
        field: &str,
        text: Option<&str>,
        refusals: &mut RefusalCollector,
    ) -> Option<Name> {
        let text = text.filter(|text| self.filter.dns_names && !text.is_empty())?;
        let checked = if is_label(text) { Ok(text) } else { Err(format!("{text:?} is not a DNS-1123 label")) };
        refusals.accept(RefusalReason::BadHostname, field, checked).map(|text| self.names.intern(text))
    }
}

fn parse_published(spec: &ServiceSpec, refusals: &mut RefusalCollector) -> Result<Published, Unserved> {
    if spec.type_.as_deref() == Some("ExternalName") {
        return parse_alias(spec, refusals);
    }
    match spec.cluster_ip.as_deref().unwrap_or_default() {
        "" => Err(Unserved::Skipped),
        "None" => Ok(Published::Headless { unready: spec.publish_not_ready_addresses == Some(true) }),
        _ => service::cluster_ips(spec, refusals).map(Published::Addresses),
    }
}

fn parse_alias(spec: &ServiceSpec, refusals: &mut RefusalCollector) -> Result<Published, Unserved> {
    let text = spec.external_name.as_deref().unwrap_or_default().trim_end_matches('.').to_ascii_lowercase();
    if is_subdomain(&text) {
        Ok(Published::Alias(text.into()))
    } else {
        Err(refusals
            .refuse_all(RefusalReason::BadExternalName, format!("spec.externalName: {text:?} is not a DNS name")))
    }
}
