//! The rules that apply to the processes of a pod: whether they are excluded from resolution, and which view they see.

use beeline_api::ExcludedPodCounts;
use beeline_model::Name;
use beeline_model::change::{Change, ObjectKey};
use beeline_model::object::{Object, Pod, PodExclusion, RESOLVE_KEY};
use std::collections::HashSet;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodRules {
    pub excluded: bool,
    pub view: Option<Name>,
}

impl PodRules {
    pub fn is_empty(&self) -> bool {
        *self == PodRules::default()
    }
}

/// Why a pod is excluded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExclusionCause {
    Annotation,
    Sidecar,
    Namespace,
}

impl ExclusionCause {
    pub fn text(self) -> &'static str {
        match self {
            ExclusionCause::Annotation => "the pod has the annotation beeline.dev/resolve: \"off\"",
            ExclusionCause::Sidecar => "the pod has a sidecar proxy of a service mesh (--sidecar-exclusion)",
            ExclusionCause::Namespace => "the pod's namespace has the label beeline.dev/resolve: \"off\"",
        }
    }
}

/// Decides which pods are excluded.
#[derive(Debug)]
pub struct ExclusionRules {
    /// Pods with a sidecar are excluded (`--sidecar-exclusion`).
    sidecars: bool,
    /// Cluster and name of the namespaces with the label `beeline.dev/resolve: "off"`.
    namespaces: HashSet<(Name, Name)>,
}

impl ExclusionRules {
    pub fn new(sidecars: bool) -> ExclusionRules {
        ExclusionRules { sidecars, namespaces: HashSet::new() }
    }

    /// Applies a change of a namespace. Returns whether pods may be excluded or served because of it.
    pub fn apply(&mut self, change: &Change) -> bool {
        match change {
            Change::Upsert(Object::Namespace(namespace)) => {
                let key = (namespace.cluster.clone(), namespace.name.clone());
                match namespace.labels.get(RESOLVE_KEY).is_some_and(|value| &**value == "off") {
                    true => self.namespaces.insert(key),
                    false => self.namespaces.remove(&key),
                }
            }
            Change::Delete(ObjectKey::Namespace { cluster, name }) => {
                self.namespaces.remove(&(cluster.clone(), name.clone()))
            }
            _ => false,
        }
    }

    pub fn cause(&self, pod: &Pod) -> Option<ExclusionCause> {
        match pod.exclusion {
            PodExclusion::Never => None,
            PodExclusion::Annotation => Some(ExclusionCause::Annotation),
            PodExclusion::Sidecar if self.sidecars => Some(ExclusionCause::Sidecar),
            PodExclusion::Sidecar | PodExclusion::Namespace => {
                let namespace = (pod.name.cluster.clone(), pod.name.namespace.clone());
                self.namespaces.contains(&namespace).then_some(ExclusionCause::Namespace)
            }
        }
    }

    pub fn rules(&self, pod: &Pod) -> PodRules {
        PodRules { excluded: self.cause(pod).is_some(), view: pod.view.clone() }
    }

    pub fn counts<'a>(&self, pods: impl Iterator<Item = &'a Pod>) -> ExcludedPodCounts {
        let mut counts = ExcludedPodCounts::default();
        for pod in pods {
            match self.cause(pod) {
                Some(ExclusionCause::Annotation) => counts.annotation += 1,
                Some(ExclusionCause::Sidecar) => counts.sidecar += 1,
                Some(ExclusionCause::Namespace) => counts.namespace += 1,
                None => counts.served_sidecar += usize::from(pod.exclusion == PodExclusion::Sidecar),
            }
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use beeline_model::object::{Namespace, PodName};
    use beeline_model::selector::Labels;

    fn pod(exclusion: PodExclusion) -> Pod {
        Pod {
            name: PodName { cluster: "local".into(), namespace: "shop".into(), name: "cart".into() },
            uid: "u".into(),
            node: Some("n1".into()),
            addresses: [].into(),
            containers: [].into(),
            exclusion,
            view: None,
            labels: Labels::new(),
            ready: true,
            ports: [].into(),
        }
    }

    fn namespace(cluster: &str, value: Option<&str>) -> Change {
        let labels = value.iter().map(|value| (RESOLVE_KEY.into(), (*value).into())).collect();
        Object::Namespace(Namespace { cluster: cluster.into(), name: "shop".into(), labels }).into()
    }

    #[test]
    fn the_annotation_wins_over_the_sidecar_and_the_namespace() {
        let [never, by_annotation, sidecar, unset] =
            [PodExclusion::Never, PodExclusion::Annotation, PodExclusion::Sidecar, PodExclusion::Namespace].map(pod);
        let all = |rules: &ExclusionRules| [&never, &by_annotation, &sidecar, &unset].map(|pod| rules.cause(pod));
        let (annotation, mesh, label) =
            (Some(ExclusionCause::Annotation), Some(ExclusionCause::Sidecar), Some(ExclusionCause::Namespace));
        let mut rules = ExclusionRules::new(true);
        assert_eq!(all(&rules), [None, annotation, mesh, None]);
        assert!(rules.apply(&namespace("local", Some("off"))));
        assert_eq!(all(&rules), [None, annotation, mesh, label]);
        assert!(!rules.apply(&namespace("local", Some("off"))), "nothing changed");
        rules.sidecars = false;
        assert_eq!(all(&rules), [None, annotation, label, label]);
        assert!(rules.apply(&namespace("local", Some("on"))));
        assert_eq!(all(&rules), [None, annotation, None, None]);
        let counts = rules.counts([&never, &by_annotation, &sidecar, &unset].into_iter());
        assert_eq!(counts, ExcludedPodCounts { annotation: 1, served_sidecar: 1, ..ExcludedPodCounts::default() });
    }

    #[test]
    fn a_namespace_of_another_cluster_or_without_the_label_excludes_nothing() {
        let mut rules = ExclusionRules::new(true);
        assert!(rules.apply(&namespace("other", Some("off"))));
        assert!(!rules.apply(&namespace("local", None)));
        assert_eq!(rules.cause(&pod(PodExclusion::Namespace)), None);
        rules.apply(&namespace("local", Some("off")));
        let key = ObjectKey::Namespace { cluster: "local".into(), name: "shop".into() };
        assert!(rules.apply(&Change::Delete(key)));
        assert_eq!(rules.cause(&pod(PodExclusion::Namespace)), None);
    }
}
