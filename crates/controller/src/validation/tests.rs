//! Tests of the evaluation of policies, and the policies that tests of other modules use.

use super::*;
use crate::cluster_state::tests::{address, apply, rename_port, state};
use beeline_model::change::{Change, ObjectKey};
use beeline_model::name::Protocol;
use beeline_model::object::Object;
use beeline_model::policy::{BackendPort, PortChoice, RedirectMode};
use beeline_model::selector::{LabelOperator, Requirement, Selector};

/// A policy for the Service default/web.
pub fn policy(kind: PolicyKind, name: &str, created: i64, ports: Option<&[u16]>) -> Policy {
    let port_name = |port: &u16| port.to_string().into();
    let dialled = |port: &u16| DialledPort { name: port_name(port), port: *port, protocol: Protocol::Tcp };
    let backend =
        |port: &u16| BackendPort { name: port_name(port), port: PortChoice::Number(8080), protocol: Protocol::Tcp };
    let all: Vec<u16> = (80..100).collect();
    let backends: Box<[BackendPort]> = ports.unwrap_or(&all).iter().map(backend).collect();
    let selector = Selector::default();
    Policy {
        name: PolicyName { kind, cluster: "local".into(), namespace: "default".into(), name: name.into() },
        uid: format!("uid-{name}").into(),
        created,
        generation: 1,
        matcher: Matcher::Service { name: "web".into(), ports: ports.map(|ports| ports.iter().map(dialled).collect()) },
        target: match kind {
            PolicyKind::LocalRedirect => Target::LocalPods { selector, ports: backends },
            PolicyKind::Balancing => {
                Target::Pods { selector, namespaces: None, mode: RedirectMode::PodEndpoint, ports: backends }
            }
        },
        nodes: None,
        out_cluster: true,
        limit: None,
    }
}

fn balancing(name: &str, created: i64, ports: Option<&[u16]>) -> Policy {
    policy(PolicyKind::Balancing, name, created, ports)
}

fn describe(evaluation: Evaluation) -> String {
    match evaluation {
        Ok(None) => "accepted".into(),
        Ok(Some(note)) => format!("{}: {note}", note.reason.as_str()),
        Err(error) => format!("refused: {}: {error}", error.reason.as_str()),
    }
}

#[test]
fn the_oldest_policy_owns_a_port() {
    let all = [
        balancing("b", 2, Some(&[80, 81])),
        balancing("a", 1, Some(&[81, 82])),
        balancing("all", 3, None),
        policy(PolicyKind::LocalRedirect, "local", 9, Some(&[83])),
        balancing("c", 4, Some(&[83])),
    ];
    let state = state(all.iter().cloned().map(Object::Policy).map(Change::Upsert).collect());
    let evaluated = |policy: &Policy| describe(state.evaluate(policy));
    let (a, b, end) = ("BalancingPolicy default/a", "BalancingPolicy default/b", "change or delete one of the two");
    assert_eq!(evaluated(&all[1]), "accepted");
    assert_eq!(evaluated(&all[0]), format!("PartialConflict: Conflict at 81/TCP ({a} is older); serves 80/TCP; {end}"));
    let rest = "83/TCP, 84/TCP, 85/TCP, 86/TCP, 87/TCP, 88/TCP, 89/TCP, 90/TCP, 91/TCP, 92/TCP and 7 more";
    let above =
        "LocalRedirectPolicy default/local has precedence at 83/TCP; this policy serves the remaining connections";
    let lost = format!("81/TCP, 82/TCP ({a} is older), 80/TCP ({b} is older)");
    assert_eq!(evaluated(&all[2]), format!("PartialConflict: Conflict at {lost}; serves {rest}; {end}; {above}"));
    assert_eq!(evaluated(&all[3]), "accepted");
    let lost = "refused: Conflict: Conflict at 83/TCP (BalancingPolicy default/all is older)";
    assert_eq!(evaluated(&all[4]), format!("{lost}; {end}"));
    assert!(state.check_admission(&balancing("new", 10, Some(&[84]))).is_err(), "a policy matches all ports");
    assert!(state.check_admission(&balancing("a", 1, Some(&[84]))).is_err());
}

#[test]
fn a_policy_with_a_missing_port_blocks_no_other_policy() {
    let (bad, good) = (balancing("a", 1, Some(&[80, 9999])), balancing("b", 2, Some(&[80])));
    let state = state([&bad, &good].map(|policy| Change::Upsert(Object::Policy(policy.clone()))).into());
    assert_eq!(describe(state.evaluate(&good)), "accepted");
    assert!(describe(state.evaluate(&bad)).starts_with("refused: PortNotFound"));
    assert!(state.check_admission(&balancing("c", 3, Some(&[80]))).is_err(), "admission reports both policies");
}

/// A LocalRedirectPolicy for all ports of default/web, with one backend port of this name.
fn redirect_to(name: &str, port_name: &str) -> Policy {
    let mut redirect = policy(PolicyKind::LocalRedirect, name, 1, None);
    let Target::LocalPods { ports, .. } = &mut redirect.target else { panic!() };
    *ports = ports.iter().take(1).cloned().map(|port| BackendPort { name: port_name.into(), ..port }).collect();
    redirect
}

#[test]
fn a_backend_port_that_the_service_does_not_have_is_not_accepted() {
    let (bad, good) = (redirect_to("bad", "metrics"), policy(PolicyKind::LocalRedirect, "good", 2, Some(&[80])));
    let state = state([&bad, &good].map(|policy| Change::Upsert(Object::Policy(policy.clone()))).into());
    let message = describe(state.evaluate(&bad));
    let wanted = "refused: PortNotFound: Service default/web has no port called \"metrics\" for TCP: it has \"80\"/TCP";
    assert!(message.starts_with(wanted), "{message}");
    assert_eq!(describe(state.evaluate(&good)), "accepted");
    let status = state.wanted_status(&bad);
    assert_eq!((status.backends, status.nodes.unwrap().programmed), (Some(0), 0));
}

#[test]
fn a_policy_that_is_not_accepted_blocks_no_other_at_admission() {
    let upsert = |policy: Policy| Change::Upsert(Object::Policy(policy));
    let state = state(vec![upsert(redirect_to("bad", "metrics")), upsert(redirect_to("one", "81"))]);
    let new = |ports: &[u16]| policy(PolicyKind::LocalRedirect, "new", 9, Some(ports));
    assert_eq!(state.check_admission(&new(&[80])), Ok(()), "neither of the two claims this port");
    assert_eq!(state.check_admission(&balancing("new", 9, Some(&[80]))), Ok(()));
    let message = state.check_admission(&new(&[81])).unwrap_err().message;
    assert!(message.starts_with("LocalRedirectPolicy default/one already matches"), "{message}");
    assert!(message.contains("port 81/TCP"), "{message}");
}

#[test]
fn policies_that_wait_for_the_same_service_conflict_at_admission() {
    let mut waiting = balancing("a", 1, Some(&[80]));
    let Matcher::Service { name, .. } = &mut waiting.matcher else { panic!() };
    *name = "later".into();
    let state = state(vec![Change::Upsert(Object::Policy(waiting.clone()))]);
    let mut other = Policy { name: balancing("b", 2, None).name, ..waiting.clone() };
    let message = state.check_admission(&other).unwrap_err().message;
    assert!(message.contains("BalancingPolicy default/a already matches the Service default/later"), "{message}");
    let Matcher::Service { ports, .. } = &mut other.matcher else { panic!() };
    *ports = Some([DialledPort { name: "81".into(), port: 81, protocol: Protocol::Tcp }].into());
    assert_eq!(state.check_admission(&other), Ok(()));
    assert!(describe(state.evaluate(&waiting)).starts_with("refused: ServiceNotFound"));
}

#[test]
fn a_renamed_service_port_is_not_accepted_and_releases_its_claim() {
    let (one, other) = (redirect_to("one", "81"), policy(PolicyKind::LocalRedirect, "other", 2, Some(&[81])));
    let upsert = |policy: &Policy| Change::Upsert(Object::Policy(policy.clone()));
    let mut state = state(vec![upsert(&one), upsert(&other)]);
    assert_eq!(describe(state.evaluate(&one)), "accepted");
    assert!(describe(state.evaluate(&other)).starts_with("refused: Conflict"));
    rename_port(&mut state, 81, "renamed");
    assert!(describe(state.evaluate(&one)).starts_with("refused: PortNotFound"));
    assert_eq!(describe(state.evaluate(&other)), "accepted", "it is listed by number and owns the port now");
}

fn virtual_policy(name: &str, ip: &str) -> Policy {
    let ports = [DialledPort { name: "80".into(), port: 80, protocol: Protocol::Tcp }];
    let matcher = Matcher::Address { address: address(ip), ports: ports.into() };
    Policy { matcher, ..balancing(name, 1, Some(&[80])) }
}

#[test]
fn a_refused_virtual_address_has_a_message_that_says_what_to_use() {
    let state = state(Vec::new());
    let message = |ip: &str| describe(state.evaluate(&virtual_policy("v", ip)));
    let outside = "refused: AddressNotAllowed: virtual address 10.1.2.3: it is outside the allowed ranges \
                   169.254.0.0/16, fd00:bee::/48 (--virtual-address-cidrs)";
    assert_eq!(message("10.1.2.3"), outside);
    let cluster_ip = message("10.96.0.1");
    let wanted =
        "refused: AddressTaken: virtual address 10.96.0.1 is the ClusterIP of Service default/web: use serviceMatcher";
    assert!(cluster_ip.starts_with(wanted), "{cluster_ip}");
    assert_eq!(message("169.254.0.9"), "accepted");
}

#[test]
fn an_address_endpoint_at_a_frontend_is_refused_while_it_is_one() {
    let to = |name: &str, ip: &str| {
        let plain = balancing(name, 1, Some(&[80]));
        let target = Target::Addresses { addresses: [address(ip)].into(), ports: plain.target.ports().into() };
        Policy { target, ..plain }
    };
    let upsert = |policy: &Policy| Change::Upsert(Object::Policy(policy.clone()));
    let (service, other) = (to("a", "10.96.0.1"), balancing("b", 2, Some(&[80])));
    let endpoint = Policy { matcher: virtual_policy("c", "169.254.0.9").matcher, ..to("c", "fd00:bee::9") };
    let mut state = state(vec![upsert(&service), upsert(&other), upsert(&endpoint)]);
    let message = describe(state.evaluate(&service));
    let wanted = "refused: BackendNotAllowed: addressEndpoint 10.96.0.1 is the ClusterIP of Service default/web,";
    assert!(message.starts_with(wanted), "{message}");
    assert_eq!(state.check_admission(&service).unwrap_err().message, message["refused: BackendNotAllowed: ".len()..]);
    assert_eq!(describe(state.evaluate(&other)), "accepted", "a refused policy claims no port");
    assert_eq!(describe(state.evaluate(&endpoint)), "accepted");
    let taker = virtual_policy("d", "fd00:bee::9");
    apply(&mut state, vec![upsert(&taker)]);
    let message = describe(state.evaluate(&endpoint));
    assert!(message.contains("is the virtual address of BalancingPolicy default/d"), "{message}");
    apply(&mut state, vec![Change::Delete(ObjectKey::Policy(taker.name))]);
    assert_eq!(describe(state.evaluate(&endpoint)), "accepted");
    assert_eq!(state.port_owners.owners(&endpoint.name, PolicyKind::Balancing).count(), 1, "it claims its port again");
}

#[test]
fn messages_name_a_limited_number_of_ports() {
    let state = state(Vec::new());
    let message = describe(state.evaluate(&balancing("x", 1, Some(&[9999]))));
    assert!(message.ends_with("88/TCP, 89/TCP and 10 more"), "{message}");
}

#[test]
fn every_change_of_a_policy_beyond_its_namespace_needs_the_right() {
    let plain = balancing("x", 1, Some(&[80]));
    assert_eq!(cluster_scope(&plain, None), None);
    let outside = Target::Addresses { addresses: [address("192.0.2.1")].into(), ports: [].into() };
    let external = Policy { target: outside, ..plain.clone() };
    assert!(cluster_scope(&external, None).unwrap().contains("addressEndpoint"));
    assert!(cluster_scope(&external, Some(&plain)).is_some(), "the addresses are new");
    assert_eq!(cluster_scope(&plain, Some(&external)), None, "nothing of it reaches beyond the namespace now");
    let virtual_one = virtual_policy("x", "169.254.0.9");
    assert!(cluster_scope(&virtual_one, None).unwrap().contains("virtual address"));
    let Target::Pods { selector, namespaces, mode, ports } = virtual_one.target.clone() else { panic!() };
    let own_pods = Selector(vec![Requirement { key: "app".into(), operator: LabelOperator::Exists }].into());
    assert_ne!(own_pods, selector);
    let target = Target::Pods { selector: own_pods, namespaces, mode, ports };
    let repointed = Policy { target, generation: 2, ..virtual_one.clone() };
    assert!(cluster_scope(&repointed, Some(&virtual_one)).is_some(), "the virtual address leads to other pods");
    for (changed, before) in [(&external, &external), (&virtual_one, &virtual_one)] {
        let other = Policy { out_cluster: false, ..changed.clone() };
        assert!(cluster_scope(&other, Some(before)).is_some());
        let labelled = Policy { generation: 7, ..changed.clone() };
        assert_eq!(cluster_scope(&labelled, Some(before)), None, "the spec is the same");
    }
}
