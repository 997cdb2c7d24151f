//! Converts networking.k8s.io/v1 ServiceCIDRs: the ranges from which a cluster allocates ClusterIPs.

use super::name::is_subdomain;
use super::{Converted, Converter, RefusalCollector, Unserved};
use crate::kind::ResourceKind;
use beeline_model::object::ServiceRange;
use beeline_model::refusal::RefusalReason;
use ipnet::IpNet;
use k8s_openapi::api::networking::v1::ServiceCIDR;

impl Converter {
    /// A ServiceCIDR that is being deleted counts as long as it exists: addresses of it may still be in use.
    pub fn range(&mut self, object: &ServiceCIDR) -> Converted<ServiceRange> {
        let mut refusals = RefusalCollector::new(ResourceKind::ServiceCidr, &object.metadata);
        let result = self.parse_range_object(object, &mut refusals);
        refusals.finish(result)
    }

    fn parse_range_object(
        &mut self,
        object: &ServiceCIDR,
        refusals: &mut RefusalCollector,
    ) -> Result<ServiceRange, Unserved> {
        let name = object.metadata.name.as_deref().filter(|name| is_subdomain(name));
        let name = name.ok_or_else(|| refusals.refuse_name())?.into();
        let texts = object.spec.iter().flat_map(|spec| spec.cidrs.iter().flatten());
        let accept = |text: &String| refusals.accept(RefusalReason::BadRange, "spec.cidrs", parse(text));
        Ok(ServiceRange { cluster: self.cluster.clone(), name, ranges: texts.filter_map(accept).collect() })
    }
}

pub(super) fn parse(text: &str) -> Result<IpNet, String> {
    text.parse().map(|net: IpNet| net.trunc()).map_err(|_| format!("{text:?} is not a range such as 10.96.0.0/16"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::ServiceFilter;

    fn convert(cidrs: &[&str]) -> Converted<ServiceRange> {
        let object = serde_json::json!({ "metadata": { "name": "kubernetes" }, "spec": { "cidrs": cidrs } });
        Converter::new("blue", ServiceFilter::default()).range(&serde_json::from_value(object).unwrap())
    }

    #[test]
    fn ranges_of_both_families_are_read_and_an_invalid_one_is_refused() {
        let both = convert(&["10.43.0.0/16", "fd00:43::/112"]);
        let range = both.result.unwrap();
        assert_eq!((&*range.cluster, &*range.name, range.ranges.len()), ("blue", "kubernetes", 2));
        assert!(both.refusals.is_empty());
        let bad = convert(&["10.43.0.0/16", "10.43.0.0/99"]);
        assert_eq!((bad.result.unwrap().ranges.len(), bad.refusals[0].reason), (1, RefusalReason::BadRange));
        assert_eq!(bad.refusals[0].subject.to_string(), "ServiceCIDR kubernetes");
    }
}
