//! The domains of the clusters. Each cluster has its own domain (such as `cluster.local`) and `<cluster>.beeline`, which no
//! other cluster can have. If two clusters have the same domain, the first in the order of the configuration gets it.

use beeline_model::Name;
use hickory_proto::rr::Name as DnsName;

/// Limit of a domain's length. A DNS name has at most 255 bytes, and a service's name must fit below the domain.
const MAX_DOMAIN_CHARS: usize = 120;
/// The domain above all `<cluster>.beeline`. All names below it are answered here and never forwarded.
const ROOT: &str = "beeline";

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{domain:?} is not a domain such as cluster.local: {reason}")]
pub struct DomainError {
    domain: String,
    reason: String,
}

/// A cluster and its own domain, as the cluster's DNS server has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zone {
    pub cluster: Name,
    pub domain: DnsName,
}

impl Zone {
    pub fn new(cluster: &str, domain: &str) -> Result<Zone, DomainError> {
        let name = parse_domain(domain)?;
        if root().zone_of(&name) {
            let reason = format!("the domain {ROOT} is reserved for <cluster>.{ROOT}");
            return Err(DomainError { domain: domain.to_owned(), reason });
        }
        Ok(Zone { cluster: cluster.into(), domain: name })
    }

    /// Whether a domain is reserved for `<cluster>.beeline`.
    pub fn is_reserved(domain: &str) -> bool {
        parse_domain(domain).is_ok_and(|name| root().zone_of(&name))
    }
}

fn parse_domain(text: &str) -> Result<DnsName, DomainError> {
    let error = |reason: String| DomainError { domain: text.to_owned(), reason };
    let without_dot = text.strip_suffix('.').unwrap_or(text);
    let labels = without_dot.split('.');
    let is_valid = |label: &str| {
        let letters = label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        !label.is_empty() && letters && !label.starts_with('-') && !label.ends_with('-')
    };
    if !labels.clone().all(is_valid) {
        return Err(error("use labels of letters, digits and '-', separated by dots".into()));
    }
    if without_dot.len() > MAX_DOMAIN_CHARS {
        return Err(error(format!("longer than {MAX_DOMAIN_CHARS} characters")));
    }
    let labels = labels.map(|label| label.to_ascii_lowercase().into_bytes());
    DnsName::from_labels(labels).map_err(|bad| error(bad.to_string()))
}

/// The position of a name in the clusters' domains.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NameLocation<'a> {
    /// `None` for a name below `beeline` that belongs to no cluster.
    pub(crate) zone: Option<&'a Zone>,
    /// The domain that contains the name.
    pub(crate) domain: &'a DnsName,
    /// The labels before the domain, from right to left.
    pub(crate) labels: Vec<String>,
}

/// The zones in one order, with all their domains.
#[derive(Clone, Debug)]
pub(crate) struct ZoneTable {
    list: Vec<Zone>,
    /// Each domain with the index of its zone. Longer domains are first, so that the most specific one matches.
    domains: Vec<(DnsName, Option<usize>)>,
}

impl ZoneTable {
    pub(crate) fn new(list: Vec<Zone>) -> ZoneTable {
        let mut domains: Vec<(DnsName, Option<usize>)> = Vec::new();
        let own = list.iter().enumerate().map(|(index, zone)| (zone.domain.clone(), Some(index)));
        let by_cluster = list.iter().enumerate();
        let by_cluster = by_cluster.filter_map(|(index, zone)| Some((cluster_domain(&zone.cluster)?, Some(index))));
        for (domain, zone) in own.chain(by_cluster).chain([(root(), None)]) {
            if !domains.iter().any(|(taken, _)| *taken == domain) {
                domains.push((domain, zone));
            }
        }
        domains.sort_by_key(|(domain, _)| std::cmp::Reverse(domain.iter().len()));
        ZoneTable { list, domains }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Zone> {
        self.list.iter()
    }

    /// All domains of a cluster, sorted.
    pub(crate) fn domains_of(&self, cluster: &str) -> Vec<String> {
        let is_of_cluster = |index: usize| *self.list[index].cluster == *cluster;
        let all = self.domains.iter().filter(|(_, zone)| zone.is_some_and(is_of_cluster));
        let mut all: Vec<String> = all.map(|(domain, _)| text(domain)).collect();
        all.sort();
        all
    }

    /// `None` if no domain contains the name.
    pub(crate) fn locate(&self, name: &DnsName) -> Option<NameLocation<'_>> {
        let (domain, zone) = self.domains.iter().find(|(domain, _)| domain.zone_of(name))?;
        let prefix = name.iter().len() - domain.iter().len();
        let labels = name.iter().take(prefix).map(|label| String::from_utf8_lossy(label).to_ascii_lowercase());
        let mut labels: Vec<String> = labels.collect();
        labels.reverse();
        Some(NameLocation { zone: zone.map(|index| &self.list[index]), domain, labels })
    }

    /// The domain in which a cluster's names are found: its own, unless an earlier cluster has the same one.
    pub(crate) fn domain_of(&self, zone: &Zone) -> DnsName {
        let first = self.list.iter().find(|other| other.domain == zone.domain);
        let has_own = first.is_some_and(|first| first.cluster == zone.cluster);
        if has_own { zone.domain.clone() } else { cluster_domain(&zone.cluster).unwrap_or_else(root) }
    }

    /// The domains to be routed to this server. `beeline` stands for all domains below it.
    pub(crate) fn served_domains(&self) -> Vec<String> {
        let root = root();
        let domains = self.domains.iter().map(|(domain, _)| domain);
        let mut served: Vec<String> =
            domains.filter(|domain| **domain == root || !root.zone_of(domain)).map(text).collect();
        served.sort();
        served
    }
}

fn text(domain: &DnsName) -> String {
    domain.to_ascii().trim_end_matches('.').to_owned()
}

fn root() -> DnsName {
    DnsName::from_labels([ROOT.as_bytes()]).unwrap_or_else(|_| DnsName::root())
}

/// `<cluster>.beeline`; `None` if the cluster's name is not a valid label.
fn cluster_domain(cluster: &str) -> Option<DnsName> {
    parse_domain(&format!("{cluster}.{ROOT}")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn locate(zones: &ZoneTable, name: &str) -> Option<(Option<String>, String)> {
        let name = DnsName::from_ascii(name).unwrap();
        let location = zones.locate(&name)?;
        Some((location.zone.map(|zone| zone.cluster.to_string()), location.labels.join(" ")))
    }

    #[test]
    fn the_most_specific_domain_contains_a_name() {
        let zone = |cluster: &str, domain: &str| Zone::new(cluster, domain).unwrap();
        let zones = ZoneTable::new(vec![
            zone("a", "cluster.local"),
            zone("b", "cluster.local"),
            zone("c", "East.cluster.local."),
        ]);
        let some = |zone: &str, labels: &str| Some((Some(zone.to_owned()), labels.to_owned()));
        assert_eq!(locate(&zones, "Web.Default.svc.Cluster.Local."), some("a", "svc default web"));
        assert_eq!(locate(&zones, "web.default.svc.b.beeline."), some("b", "svc default web"));
        assert_eq!(locate(&zones, "x.east.cluster.local."), some("c", "x"));
        assert_eq!(locate(&zones, "cluster.local."), some("a", ""));
        assert_eq!(locate(&zones, "x.z.beeline."), Some((None, "z x".into())));
        assert_eq!(locate(&zones, "local."), None);
        assert_eq!(locate(&zones, "xcluster.local."), None);
        let domains: Vec<String> = zones.iter().map(|zone| zones.domain_of(zone).to_ascii()).collect();
        assert_eq!(domains, ["cluster.local.", "b.beeline.", "east.cluster.local."]);
        assert_eq!(zones.served_domains(), ["beeline", "cluster.local", "east.cluster.local"]);
    }

    #[test]
    fn invalid_domains_are_refused() {
        let long = "a.".repeat(61);
        let invalid =
            ["", ".", "a..b", "a.b..", "-a.b", "a-.b", "a_b", "a b", &"a".repeat(64), &long, "beeline", "x.Beeline."];
        for domain in invalid {
            let error = Zone::new("local", domain).unwrap_err().to_string();
            assert!(error.contains("is not a domain such as cluster.local"), "{error}");
        }
    }
}
