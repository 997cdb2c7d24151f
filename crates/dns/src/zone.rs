//! Which domains are ours, and whose: each cluster's own, and `<cluster>.beeline`, which is never anybody else's.
//! Clusters stand in the order of the configuration; of two with the same domain the first has it.

use beeline_model::Name as Word;
use hickory_proto::rr::Name;

/// A longer one leaves no room for a service's name below it: 255 bytes are the most.
const LONGEST: usize = 120;
/// Above the clusters' second names. Nobody outside may know what is asked below it, so all of it is answered here.
const ROOT: &str = "beeline";

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{domain:?} is not a domain such as cluster.local: {why}")]
pub struct BadDomain {
    domain: String,
    why: String,
}

/// A cluster and the domain that its own name server would answer for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zone {
    pub cluster: Word,
    pub domain: Name,
}

impl Zone {
    pub fn new(cluster: &str, domain: &str) -> Result<Zone, BadDomain> {
        let name = parse_domain(domain)?;
        if root().zone_of(&name) {
            let why = format!("everything below {ROOT} is given to clusters by their names");
            return Err(BadDomain { domain: domain.to_owned(), why });
        }
        Ok(Zone { cluster: cluster.into(), domain: name })
    }

    /// Whether it is one of those that clusters get by their names.
    pub fn is_second(domain: &str) -> bool {
        parse_domain(domain).is_ok_and(|name| root().zone_of(&name))
    }
}

fn parse_domain(text: &str) -> Result<Name, BadDomain> {
    let given = text;
    let bad = |why: String| BadDomain { domain: given.to_owned(), why };
    let label = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
    let text = text.strip_suffix('.').unwrap_or(text);
    let words = text.split('.');
    let dashed = |word: &str| word.starts_with('-') || word.ends_with('-');
    if words.clone().any(|word| word.is_empty() || dashed(word) || !word.bytes().all(label)) {
        return Err(bad("labels of letters, digits and '-', with dots between them".into()));
    }
    if text.len() > LONGEST {
        return Err(bad(format!("longer than {LONGEST} characters")));
    }
    let labels = words.map(|word| word.to_ascii_lowercase().into_bytes());
    Name::from_labels(labels).map_err(|error| bad(error.to_string()))
}

/// Where a name lies.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Place<'a> {
    /// `None`: below `beeline`, but of no cluster.
    pub(crate) zone: Option<&'a Zone>,
    /// The domain that it lies in.
    pub(crate) domain: &'a Name,
    /// What stands before the domain, from the right.
    pub(crate) labels: Vec<String>,
}

#[derive(Clone, Debug)]
pub(crate) struct Zones {
    list: Vec<Zone>,
    /// Each with its zone's number. Longer ones first, so that a domain below another's is found.
    domains: Vec<(Name, Option<usize>)>,
}

impl Zones {
    pub(crate) fn new(list: Vec<Zone>) -> Zones {
        let mut domains: Vec<(Name, Option<usize>)> = Vec::new();
        let own = list.iter().enumerate().map(|(number, zone)| (zone.domain.clone(), Some(number)));
        let second = list.iter().enumerate();
        let second = second.filter_map(|(number, zone)| Some((second_domain(&zone.cluster)?, Some(number))));
        for (domain, zone) in own.chain(second).chain([(root(), None)]) {
            if !domains.iter().any(|(taken, _)| *taken == domain) {
                domains.push((domain, zone));
            }
        }
        domains.sort_by_key(|(domain, _)| std::cmp::Reverse(domain.iter().len()));
        Zones { list, domains }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Zone> {
        self.list.iter()
    }

    /// All that lead to this cluster.
    pub(crate) fn domains_of(&self, cluster: &str) -> Vec<String> {
        let of = |number: usize| *self.list[number].cluster == *cluster;
        let all = self.domains.iter().filter(|(_, zone)| zone.is_some_and(of));
        let mut all: Vec<String> = all.map(|(domain, _)| text(domain)).collect();
        all.sort();
        all
    }

    pub(crate) fn place(&self, name: &Name) -> Option<Place<'_>> {
        let (domain, zone) = self.domains.iter().find(|(domain, _)| domain.zone_of(name))?;
        let before = name.iter().len() - domain.iter().len();
        let labels = name.iter().take(before).map(|label| String::from_utf8_lossy(label).to_ascii_lowercase());
        let mut labels: Vec<String> = labels.collect();
        labels.reverse();
        Some(Place { zone: zone.map(|number| &self.list[number]), domain, labels })
    }

    /// Under which a cluster's names are found: its own domain, unless an earlier cluster has that.
    pub(crate) fn domain_of(&self, zone: &Zone) -> Name {
        let first = self.list.iter().find(|other| other.domain == zone.domain);
        let own = first.is_some_and(|first| first.cluster == zone.cluster);
        if own { zone.domain.clone() } else { second_domain(&zone.cluster).unwrap_or_else(root) }
    }

    /// All that is answered for, to be routed here; `beeline` holds all that lies below it.
    pub(crate) fn routes(&self) -> Vec<String> {
        let root = root();
        let shown =
            self.domains.iter().map(|(domain, _)| domain).filter(|domain| **domain == root || !root.zone_of(domain));
        let mut all: Vec<String> = shown.map(text).collect();
        all.sort();
        all
    }
}

fn text(domain: &Name) -> String {
    domain.to_ascii().trim_end_matches('.').to_owned()
}

fn root() -> Name {
    Name::from_labels([ROOT.as_bytes()]).unwrap_or_else(|_| Name::root())
}

/// A cluster whose name is no domain has only its own one.
fn second_domain(cluster: &str) -> Option<Name> {
    parse_domain(&format!("{cluster}.{ROOT}")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(zones: &Zones, name: &str) -> Option<(Option<String>, String)> {
        let name = Name::from_ascii(name).unwrap();
        let place = zones.place(&name)?;
        Some((place.zone.map(|zone| zone.cluster.to_string()), place.labels.join(" ")))
    }

    #[test]
    fn names_lie_in_one_domain() {
        let zone = |cluster: &str, domain: &str| Zone::new(cluster, domain).unwrap();
        let zones =
            Zones::new(vec![zone("a", "cluster.local"), zone("b", "cluster.local"), zone("c", "East.cluster.local.")]);
        let some = |zone: &str, labels: &str| Some((Some(zone.to_owned()), labels.to_owned()));
        assert_eq!(place(&zones, "Web.Default.svc.Cluster.Local."), some("a", "svc default web"));
        assert_eq!(place(&zones, "web.default.svc.b.beeline."), some("b", "svc default web"));
        assert_eq!(place(&zones, "x.east.cluster.local."), some("c", "x"));
        assert_eq!(place(&zones, "cluster.local."), some("a", ""));
        assert_eq!(place(&zones, "x.z.beeline."), Some((None, "z x".into())));
        assert_eq!(place(&zones, "local."), None);
        assert_eq!(place(&zones, "xcluster.local."), None);
        let domains: Vec<String> = zones.iter().map(|zone| zones.domain_of(zone).to_ascii()).collect();
        assert_eq!(domains, ["cluster.local.", "b.beeline.", "east.cluster.local."]);
        assert_eq!(zones.routes(), ["beeline", "cluster.local", "east.cluster.local"]);
    }

    #[test]
    fn bad_domains_are_named() {
        let long = "a.".repeat(61);
        let bad =
            ["", ".", "a..b", "a.b..", "-a.b", "a-.b", "a_b", "a b", &"a".repeat(64), &long, "beeline", "x.Beeline."];
        for bad in bad {
            let error = Zone::new("local", bad).unwrap_err().to_string();
            assert!(error.contains("is not a domain such as cluster.local"), "{error}");
        }
    }
}
