//! Adds names to events: the service port, the policy, the dialling pod and the backend. The names are looked up when the
//! event is read, because the kernel's ids are recycled: a name that is looked up later may belong to another service.

use crate::pod_cgroup::{PodCgroups, PodIdentity};
use beeline_api::{AttributedEvent, EventNames};
use beeline_model::event::{Event, Reason};
use beeline_model::planner::Planner;
use beeline_model::row::FrontendKey;
use beeline_model::table::Tables;
use beeline_model::{Address, PortName};

pub struct Attribution<'a> {
    pub tables: &'a Tables,
    pub planner: &'a Planner,
    pub pod_cgroups: &'a PodCgroups,
}

impl Attribution<'_> {
    pub fn attribute(&self, event: Event) -> AttributedEvent {
        let mut names = EventNames::default();
        if let Some(name) = self.tables.port_name(event.owner) {
            names.cluster = Some(name.service.cluster().into());
            names.service = Some(name.to_string());
            names.policy = name.service.policy_kind().map(|_| name.service.to_string());
            names.backend_node = event.chosen.and_then(|(address, _)| self.node_of(&name, address));
        } else if event.reason == Reason::NoPort {
            // No service port decided. The cluster is the one that has the ClusterIP in the client's view.
            let key = FrontendKey { view: event.view, ..FrontendKey::all_ports(event.dialled) };
            names.cluster = self.planner.claims().winner(&key).map(|claim| claim.service.cluster().into());
        }
        names.limited_by = self.tables.port_name(event.limited).map(|name| name.service.to_string());
        names.view_name = self.planner.order().view_name(event.view).map(ToString::to_string);
        if let Some(PodIdentity { namespace, pod, container }) = self.pod_cgroups.identify(event.cgroup) {
            (names.namespace, names.pod, names.container) = (Some(namespace), Some(pod), container);
        }
        let backend = event.chosen.and_then(|(address, _)| self.pod_cgroups.pod_at(address));
        names.backend_pod = backend.map(|pod| format!("{}/{}", pod.namespace, pod.name));
        AttributedEvent { event, names }
    }

    /// The node of a Service's endpoint.
    fn node_of(&self, name: &PortName, address: Address) -> Option<String> {
        let mut endpoints = self.planner.slices_of(&name.service).flat_map(|slice| slice.endpoints.iter());
        endpoints.find(|endpoint| endpoint.address == address)?.node.as_ref().map(ToString::to_string)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use beeline_model::change::{Change, ObjectKey};
    use beeline_model::diff::reconcile;
    use beeline_model::event::{Action, Hook};
    use beeline_model::object::{Endpoint, Object, Pod, PodName, Service, ServicePort, Slice, SliceName, SlicePort};
    use beeline_model::op::MemoryMaps;
    use beeline_model::row::{OwnerId, Sizes};
    use beeline_model::rules::Rules;
    use beeline_model::selector::Labels;
    use beeline_model::{Family, Protocol, ServiceName};
    use std::path::Path;

    fn address(text: &str) -> Address {
        text.parse::<std::net::IpAddr>().unwrap().into()
    }

    fn service(name: &str) -> Change {
        Change::Upsert(Object::Service(Service {
            created: 1,
            cluster_ips: [address("10.96.0.10")].into(),
            ports: [ServicePort { name: "http".into(), protocol: Protocol::Tcp, port: 80, node_port: 0 }].into(),
            ..Service::named(ServiceName::local("default", name))
        }))
    }

    fn slice(service: &str) -> Change {
        let endpoint = Endpoint { node: Some("n1".into()), ..Endpoint::ready(address("10.244.1.5")) };
        Change::Upsert(Object::Slice(Slice {
            name: SliceName { cluster: "local".into(), namespace: "default".into(), name: service.into() },
            service: ServiceName::local("default", service),
            family: Family::V4,
            ports: [SlicePort { name: "http".into(), protocol: Protocol::Tcp, port: 8080 }].into(),
            endpoints: [endpoint].into(),
            hostnames: None,
        }))
    }

    fn pod(name: &str) -> Change {
        Change::Upsert(Object::Pod(Pod {
            name: PodName { cluster: "local".into(), namespace: "default".into(), name: name.into() },
            uid: "u".into(),
            node: Some("n1".into()),
            addresses: [address("10.244.1.5")].into(),
            containers: [].into(),
            exclusion: Default::default(),
            view: None,
            labels: Labels::new(),
            ready: true,
            ports: [].into(),
        }))
    }

    fn event(owner: OwnerId) -> Event {
        Event {
            time: 1,
            cgroup: 1,
            netns: 1,
            pid: 1,
            process: "curl".into(),
            owner,
            hook: Hook::Connect,
            protocol: Some(Protocol::Tcp),
            dialled: address("10.96.0.10"),
            dialled_port: 80,
            chosen: Some((address("10.244.1.5"), 8080)),
            kind: None,
            rule: None,
            action: Action::Resolved,
            reason: Reason::None,
            affinity: false,
            limited: 0,
            view: 0,
            source: None,
        }
    }

    struct Fixture {
        planner: Planner,
        tables: Tables,
        maps: MemoryMaps,
        pod_cgroups: PodCgroups,
    }

    impl Fixture {
        fn new() -> Fixture {
            let sizes = Sizes::for_services(64);
            Fixture {
                planner: Planner::new(Rules::for_node("n1")),
                tables: Tables::new(sizes),
                maps: MemoryMaps::new(sizes),
                pod_cgroups: PodCgroups::new(
                    Path::new("/nowhere"),
                    "n1".into(),
                    crate::pod_rules::ExclusionRules::new(true),
                ),
            }
        }

        fn program(&mut self, changes: impl IntoIterator<Item = Change>) {
            for change in changes {
                self.pod_cgroups.apply(&change, &self.planner);
                self.planner.apply(change);
            }
            let delta = self.planner.take_full_delta();
            assert!(reconcile(&mut self.tables, &mut self.maps, &delta, true).is_clean());
            self.tables.recycle(&mut self.maps).unwrap();
        }

        fn owner(&self) -> OwnerId {
            self.tables.port_names().map(|(_, owner)| owner).next().unwrap()
        }

        fn names(&self, owner: OwnerId) -> EventNames {
            let Fixture { planner, tables, pod_cgroups, .. } = self;
            Attribution { tables, planner, pod_cgroups }.attribute(event(owner)).names
        }
    }

    #[test]
    fn an_event_carries_the_names_of_service_and_backend() {
        let mut fixture = Fixture::new();
        fixture.program([service("web"), slice("web"), pod("web-0")]);
        let names = fixture.names(fixture.owner());
        assert_eq!(names.service.as_deref(), Some("default/web:http/TCP"));
        assert_eq!((names.cluster.as_deref(), names.policy), (Some("local"), None));
        assert_eq!((names.backend_pod.as_deref(), names.backend_node.as_deref()), (Some("default/web-0"), Some("n1")));
        assert_eq!(fixture.names(0).service, None);
    }

    /// The ids of a deleted service are given to new ones.
    #[test]
    fn a_recycled_id_is_attributed_to_its_current_service() {
        let mut fixture = Fixture::new();
        fixture.program([service("old"), slice("old")]);
        let owner = fixture.owner();
        assert_eq!(fixture.names(owner).service.as_deref(), Some("default/old:http/TCP"));
        fixture.program([Change::Delete(ObjectKey::Service(ServiceName::local("default", "old")))]);
        for attempt in 0..1000 {
            let name = format!("new-{attempt}");
            fixture.program([service(&name), slice(&name)]);
            if fixture.owner() == owner {
                assert_eq!(fixture.names(owner).service, Some(format!("default/{name}:http/TCP")));
                return;
            }
            fixture.program([Change::Delete(ObjectKey::Service(ServiceName::local("default", &name)))]);
        }
        panic!("the id {owner} was not recycled");
    }
}
