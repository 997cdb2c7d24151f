//! networking.k8s.io/v1 ServiceCIDR to fact: where a cluster's ClusterIPs come from.

use super::name::is_subdomain;
use super::{Convert, Converted, Report, Unserved};
use beeline_model::Name;
use beeline_model::fact::Fact;
use ipnet::IpNet;
use k8s_openapi::api::networking::v1::ServiceCIDR;

#[derive(Debug)]
pub struct Range {
    cluster: Name,
    name: Name,
    ranges: Box<[IpNet]>,
}

impl Range {
    pub(crate) fn fact(self) -> Fact {
        Fact::ServiceRange { cluster: self.cluster, name: self.name, ranges: self.ranges }
    }
}

impl Convert {
    /// One that is being deleted counts as long as it is there: addresses may still be given out of it.
    pub fn range(&mut self, object: &ServiceCIDR) -> Converted<Range> {
        let mut report = Report::new("ServiceCIDR", &object.metadata);
        let fact = self.owned_range(object, &mut report);
        report.close(fact)
    }

    fn owned_range(&mut self, object: &ServiceCIDR, report: &mut Report) -> Result<Range, Unserved> {
        let name = object.metadata.name.as_deref().filter(|name| is_subdomain(name));
        let name = name.ok_or_else(|| report.bad_name())?.into();
        let texts = object.spec.iter().flat_map(|spec| spec.cidrs.iter().flatten());
        let ranges = texts.filter_map(|text| report.keep("badRange", "spec.cidrs", parse(text))).collect();
        Ok(Range { cluster: self.cluster.clone(), name, ranges })
    }
}

fn parse(text: &str) -> Result<IpNet, String> {
    text.parse().map(|net: IpNet| net.trunc()).map_err(|_| format!("{text:?} is no range such as 10.96.0.0/16"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::Claim;

    fn convert(cidrs: &[&str]) -> Converted<Range> {
        let object = serde_json::json!({ "metadata": { "name": "kubernetes" }, "spec": { "cidrs": cidrs } });
        Convert::new("blue", Claim::default()).range(&serde_json::from_value(object).unwrap())
    }

    #[test]
    fn ranges_of_both_families_and_what_is_none() {
        let both = convert(&["10.43.0.0/16", "fd00:43::/112"]);
        let Fact::ServiceRange { cluster, name, ranges } = both.fact.unwrap().fact() else { panic!("no range") };
        assert_eq!((&*cluster, &*name, ranges.len(), both.refusals.len()), ("blue", "kubernetes", 2, 0));
        let bad = convert(&["10.43.0.0/16", "10.43.0.0/99"]);
        assert_eq!((bad.fact.unwrap().ranges.len(), bad.refusals[0].reason), (1, "badRange"));
        assert_eq!(bad.refusals[0].subject, "ServiceCIDR kubernetes");
    }
}
