//! What has only a name: told where names are answered, and in the place of what can be dialled.

mod support;

use beeline_cluster::{Claim, Snapshot, diff};
use beeline_model::OwnerName;
use beeline_model::fact::{Fact, Published};
use beeline_model::planner::Planner;
use beeline_model::rules::Rules;
use support::{read, read_as};

const TEXT: &str = "
apiVersion: v1
kind: Service
metadata: {name: pets}
spec: {clusterIP: None, ports: [{name: db, port: 5432}]}
---
apiVersion: v1
kind: Service
metadata: {name: early}
spec: {clusterIP: None, publishNotReadyAddresses: true}
---
apiVersion: v1
kind: Service
metadata: {name: out}
spec: {type: ExternalName, externalName: Example.Org.}
---
apiVersion: v1
kind: Service
metadata: {name: other, labels: {service.kubernetes.io/service-proxy-name: somebody}}
spec: {clusterIP: 10.96.0.9, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: pets-1, labels: {kubernetes.io/service-name: pets, service.kubernetes.io/headless: ''}}
addressType: IPv4
ports: [{name: db, port: 5432}]
endpoints:
- {addresses: [bad]}
- {addresses: [10.0.0.1], hostname: pet-0}
- {addresses: [10.0.0.2]}
- {addresses: [10.0.0.3], hostname: Not.A.Label}
---
apiVersion: v1
kind: Endpoints
metadata: {name: early}
subsets:
- {addresses: [{ip: 10.0.0.7}, {ip: 10.0.0.8, hostname: bird}], ports: [{port: 80}]}
";

fn named() -> Snapshot {
    read_as(TEXT, Claim { names: true, ..Claim::default() })
}

fn published(snapshot: &Snapshot, name: &str) -> Published {
    snapshot.named_services[&OwnerName::local("default", name)].published.clone()
}

#[test]
fn names_are_told_only_where_they_are_asked_for() {
    let without = read(TEXT);
    assert!(without.named_services.is_empty() && without.named_slices.is_empty());
    assert!(without.slices.values().all(|slice| slice.hostnames.is_none()));
    let with = named();
    assert_eq!(with.services, without.services, "what can be dialled is the same");
    assert_eq!(published(&with, "pets"), Published::Headless { unready: false });
    assert_eq!(published(&with, "early"), Published::Headless { unready: true });
    assert_eq!(published(&with, "out"), Published::Alias("example.org".into()));
    let address = "10.96.0.9".parse::<std::net::IpAddr>().unwrap().into();
    assert_eq!(published(&with, "other"), Published::Addresses([address].into()));
    assert_eq!(with.named_services.len(), 4);
}

#[test]
fn hostnames_stay_with_their_endpoints() {
    let snapshot = named();
    let slice = snapshot.named_slices.values().next().expect("one labelled headless");
    let hosts: Vec<(String, Option<&str>)> = slice
        .endpoints
        .iter()
        .enumerate()
        .map(|(i, e)| (e.address.to_string(), slice.hostname(i).map(|n| &**n)))
        .collect();
    let wanted = [("10.0.0.1", Some("pet-0")), ("10.0.0.2", None), ("10.0.0.3", None)];
    assert_eq!(hosts, wanted.map(|(ip, name)| (ip.to_owned(), name)));
    let reasons: Vec<&str> = snapshot.refusals.iter().map(|refusal| refusal.reason).collect();
    assert!(reasons.contains(&"badHostname") && reasons.contains(&"badEndpoint"), "{reasons:?}");
    let mirrored = snapshot.slices.values().next().expect("the Endpoints");
    assert_eq!(mirrored.hostname(1).map(|name| &**name), Some("bird"));
}

#[test]
fn a_service_is_one_or_the_other() {
    let dialled = TEXT.replace("name: pets}\nspec: {clusterIP: None", "name: pets}\nspec: {clusterIP: 10.96.0.5");
    let dialled = dialled.replace(", service.kubernetes.io/headless: ''", "");
    let (one, other) = (named(), read_as(&dialled, Claim { names: true, ..Claim::default() }));
    for (from, to) in [(&one, &other), (&other, &one)] {
        let facts = diff(from, to);
        assert!(!facts.iter().any(|fact| matches!(fact, Fact::ServiceGone(_) | Fact::SliceGone(_))), "{facts:?}");
        let mut told = Snapshot { refusals: to.refusals.clone(), ..from.clone() };
        facts.into_iter().for_each(|fact| told.apply(fact));
        assert_eq!(told, *to);
    }
}

/// What is not to be dialled any more leaves the tables, and what has only a name never gets there.
#[test]
fn no_table_has_what_has_only_a_name() {
    let dialled = TEXT.replace("name: pets}\nspec: {clusterIP: None", "name: pets}\nspec: {clusterIP: 10.96.0.5");
    let dialled = dialled.replace(", service.kubernetes.io/headless: ''", "");
    let before = read_as(&dialled, Claim { names: true, ..Claim::default() });
    let mut planner = Planner::new(Rules::for_node("n"));
    before.clone().into_facts().into_iter().for_each(|fact| _ = planner.apply(fact));
    let pets = OwnerName::local("default", "pets");
    assert!(planner.service(&pets).is_some() && planner.slices_of(&pets).count() == 1);
    diff(&before, &named()).into_iter().for_each(|fact| _ = planner.apply(fact));
    assert!(planner.service(&pets).is_none() && planner.slices_of(&pets).count() == 0);
    assert_eq!(planner.services().count(), 1, "web alone");
}

#[test]
fn an_alias_to_nowhere_is_refused() {
    let text = TEXT.replace("Example.Org.", "not a name");
    let snapshot = read_as(&text, Claim { names: true, ..Claim::default() });
    assert!(snapshot.refusals.iter().any(|refusal| refusal.reason == "badExternalName"), "{:?}", snapshot.refusals);
    assert!(!snapshot.named_services.contains_key(&OwnerName::local("default", "out")));
}
