//! Services and slices that only DNS needs. They are converted only if DNS is in use, and replace the objects that can
//! be dialled.

mod support;

use beeline_cluster::{ServiceFilter, Snapshot, diff};
use beeline_model::ServiceName;
use beeline_model::change::{Change, ObjectKey};
use beeline_model::object::Published;
use beeline_model::planner::Planner;
use beeline_model::rules::Rules;
use support::{read, read_with};

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
metadata: {name: other, labels: {service.kubernetes.io/service-proxy-name: other-proxy}}
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
    read_with(TEXT, ServiceFilter { dns_names: true, ..ServiceFilter::default() })
}

fn published(snapshot: &Snapshot, name: &str) -> Published {
    snapshot.named_services[&ServiceName::local("default", name)].published.clone()
}

#[test]
fn named_services_are_converted_only_for_dns() {
    let without = read(TEXT);
    assert!(without.named_services.is_empty() && without.named_slices.is_empty());
    assert!(without.slices.values().all(|slice| slice.hostnames.is_none()));
    let with = named();
    assert_eq!(with.services, without.services, "the Services that can be dialled are the same");
    assert_eq!(published(&with, "pets"), Published::Headless { unready: false });
    assert_eq!(published(&with, "early"), Published::Headless { unready: true });
    assert_eq!(published(&with, "out"), Published::Alias("example.org".into()));
    let address = "10.96.0.9".parse::<std::net::IpAddr>().unwrap().into();
    assert_eq!(published(&with, "other"), Published::Addresses([address].into()));
    assert_eq!(with.named_services.len(), 4);
}

#[test]
fn hostnames_belong_to_their_endpoints() {
    let snapshot = named();
    let slice = snapshot.named_slices.values().next().expect("the slice with the headless label");
    let hosts: Vec<(String, Option<&str>)> = slice
        .endpoints
        .iter()
        .enumerate()
        .map(|(i, e)| (e.address.to_string(), slice.hostname(i).map(|n| &**n)))
        .collect();
    let wanted = [("10.0.0.1", Some("pet-0")), ("10.0.0.2", None), ("10.0.0.3", None)];
    assert_eq!(hosts, wanted.map(|(ip, name)| (ip.to_owned(), name)));
    let reasons: Vec<&str> = snapshot.refusals.iter().map(|refusal| refusal.reason.as_str()).collect();
    assert!(reasons.contains(&"badHostname") && reasons.contains(&"badEndpoint"), "{reasons:?}");
    let mirrored = snapshot.slices.values().next().expect("the slice of the Endpoints");
    assert_eq!(mirrored.hostname(1).map(|name| &**name), Some("bird"));
}

#[test]
fn a_service_that_becomes_headless_replaces_the_dialled_one() {
    let dialled = TEXT.replace("name: pets}\nspec: {clusterIP: None", "name: pets}\nspec: {clusterIP: 10.96.0.5");
    let dialled = dialled.replace(", service.kubernetes.io/headless: ''", "");
    let (one, other) = (named(), read_with(&dialled, ServiceFilter { dns_names: true, ..ServiceFilter::default() }));
    for (from, to) in [(&one, &other), (&other, &one)] {
        let changes = diff(from, to);
        assert!(
            !changes.iter().any(|change| matches!(change, Change::Delete(ObjectKey::Service(_) | ObjectKey::Slice(_)))),
            "{changes:?}"
        );
        let mut applied = Snapshot { refusals: to.refusals.clone(), ..from.clone() };
        changes.into_iter().for_each(|change| applied.apply(change));
        assert_eq!(applied, *to);
    }
}

/// A Service that becomes headless is removed from the plan, and a headless one is never planned.
#[test]
fn the_planner_ignores_services_that_only_dns_needs() {
    let dialled = TEXT.replace("name: pets}\nspec: {clusterIP: None", "name: pets}\nspec: {clusterIP: 10.96.0.5");
    let dialled = dialled.replace(", service.kubernetes.io/headless: ''", "");
    let before = read_with(&dialled, ServiceFilter { dns_names: true, ..ServiceFilter::default() });
    let mut planner = Planner::new(Rules::for_node("n"));
    before.clone().into_changes().into_iter().for_each(|change| _ = planner.apply(change));
    let pets = ServiceName::local("default", "pets");
    assert!(planner.service(&pets).is_some() && planner.slices_of(&pets).count() == 1);
    diff(&before, &named()).into_iter().for_each(|change| _ = planner.apply(change));
    assert!(planner.service(&pets).is_none() && planner.slices_of(&pets).count() == 0);
    assert_eq!(planner.services().count(), 1, "only web can be dialled");
}

#[test]
fn an_invalid_external_name_is_refused() {
    let text = TEXT.replace("Example.Org.", "not a name");
    let snapshot = read_with(&text, ServiceFilter { dns_names: true, ..ServiceFilter::default() });
    assert!(snapshot.refusals.iter().any(|refusal| refusal.reason == "badExternalName"), "{:?}", snapshot.refusals);
    assert!(!snapshot.named_services.contains_key(&ServiceName::local("default", "out")));
}
