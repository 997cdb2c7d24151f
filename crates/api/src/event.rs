//! Events as `monitor` receives them: the kernel's event with the names of service, policy, pod and backend.

use beeline_model::event::{Action, Event};
use serde::{Deserialize, Serialize};

/// One line of a monitor stream.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum MonitorLine {
    /// The client read too slowly: this many events were dropped.
    Lost {
        lost: u64,
    },
    /// The request was refused; the stream ends.
    Error {
        error: String,
    },
    Event(Box<AttributedEvent>),
}

/// An event, with names instead of ids. The agent adds the names when it reads the event, because ids are recycled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AttributedEvent {
    #[serde(flatten)]
    pub event: Event,
    #[serde(flatten)]
    pub names: EventNames,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EventNames {
    /// The cluster that the dialled address belongs to.
    pub cluster: Option<String>,
    /// The service port or policy that decided: `default/web:http/TCP`, `cluster:default/web:http/TCP`,
    /// `LocalRedirectPolicy kube-system/dns:dns/UDP`.
    pub service: Option<String>,
    /// The policy that decided: `LocalRedirectPolicy kube-system/dns`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// The policy whose connection limit was reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limited_by: Option<String>,
    /// The name of the view, where the dial was made in one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub view_name: Option<String>,
    /// The pod that dialled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// NAMESPACE/NAME of the pod at the chosen address, where the agent knows it (pods of its own node).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend_pod: Option<String>,
    /// The node of the chosen backend.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend_node: Option<String>,
}

/// Selects the events of a monitor stream. The agent applies the filter. An empty filter selects all events.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EventFilter {
    /// NAMESPACE/NAME of any cluster, or CLUSTER:NAMESPACE/NAME; a port may follow (`:http`).
    pub service: Option<String>,
    /// The id of the dialling process's cgroup.
    pub cgroup: Option<u64>,
    pub verdict: Option<Action>,
}

impl EventFilter {
    pub fn matches(&self, event: &AttributedEvent) -> bool {
        self.service.as_deref().is_none_or(|service| event.names.is_of_service(service))
            && self.cgroup.is_none_or(|cgroup| event.event.cgroup == cgroup)
            && self.verdict.is_none_or(|verdict| event.event.action == verdict)
    }
}

impl EventNames {
    fn is_of_service(&self, wanted: &str) -> bool {
        let Some(service) = self.service.as_deref() else { return false };
        let cluster = self.cluster.as_deref().unwrap_or_default();
        let without_cluster = service.strip_prefix(cluster).and_then(|rest| rest.strip_prefix(':')).unwrap_or(service);
        [service, without_cluster].iter().any(|name| has_prefix(name, wanted))
    }
}

/// `default/web` is a prefix of `default/web:http/TCP`, but not of `default/web-2`.
fn has_prefix(name: &str, prefix: &str) -> bool {
    name.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with([':', '/']))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(service: Option<&str>, cluster: &str) -> AttributedEvent {
        let event = serde_json::json!({
            "time": 1, "cgroup": 7, "netns": 1, "pid": 1, "process": "curl", "owner": 3, "hook": "connect",
            "protocol": "TCP", "dialled": "10.96.0.10", "dialledPort": 80, "chosen": ["10.244.1.2", 8080],
            "kind": "clusterIP", "rule": "service", "action": "resolved", "reason": "none", "affinity": false,
            "limited": 0, "view": 0, "service": service, "cluster": cluster,
        });
        serde_json::from_value(event).unwrap()
    }

    #[test]
    fn a_service_filter_matches_whole_names_with_or_without_the_cluster() {
        let matches = |wanted: &str, event: &AttributedEvent| {
            EventFilter { service: Some(wanted.into()), ..EventFilter::default() }.matches(event)
        };
        let green = event(Some("green:default/web:http/TCP"), "green");
        for wanted in ["default/web", "green:default/web", "default/web:http", "default/web:http/TCP"] {
            assert!(matches(wanted, &green), "{wanted}");
        }
        for wanted in ["default/we", "red:default/web", "web", "default/web:https"] {
            assert!(!matches(wanted, &green), "{wanted}");
        }
        assert!(matches("default/web", &event(Some("default/web/TCP"), "local")));
        assert!(!matches("default/web", &event(None, "local")));
    }

    #[test]
    fn the_filters_are_combined() {
        let one = event(Some("default/web/TCP"), "local");
        let filter = EventFilter { service: None, cgroup: Some(7), verdict: Some(Action::Resolved) };
        assert!(filter.matches(&one) && EventFilter::default().matches(&one));
        assert!(!EventFilter { cgroup: Some(8), ..filter.clone() }.matches(&one));
        assert!(!EventFilter { verdict: Some(Action::Refused), ..filter }.matches(&one));
    }

    #[test]
    fn every_kind_of_line_is_read_back() {
        let line = |text: &str| serde_json::from_str::<MonitorLine>(text).unwrap();
        assert!(matches!(line(r#"{"lost":3}"#), MonitorLine::Lost { lost: 3 }));
        assert!(matches!(line(r#"{"error":"no such level"}"#), MonitorLine::Error { .. }));
        let one = event(Some("default/web/TCP"), "local");
        let text = serde_json::to_string(&MonitorLine::Event(Box::new(one.clone()))).unwrap();
        assert!(matches!(line(&text), MonitorLine::Event(read) if *read == one), "{text}");
    }
}
