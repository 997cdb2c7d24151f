//! Label selectors, by which a policy selects pods, namespaces and nodes.

use crate::name::Name;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub type Labels = BTreeMap<Name, Name>;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum LabelOperator {
    In(Box<[Name]>),
    NotIn(Box<[Name]>),
    Exists,
    DoesNotExist,
}

/// A condition on one label.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requirement {
    pub key: Name,
    pub operator: LabelOperator,
}

/// A selector matches if all its requirements hold. A selector without requirements matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Selector(pub Box<[Requirement]>);

impl Selector {
    pub fn matches(&self, labels: &Labels) -> bool {
        self.0.iter().all(|requirement| requirement.holds(labels))
    }
}

impl Requirement {
    /// Follows Kubernetes: NotIn also matches an object that does not have the label.
    fn holds(&self, labels: &Labels) -> bool {
        let value = labels.get(&self.key);
        match &self.operator {
            LabelOperator::In(values) => value.is_some_and(|value| values.contains(value)),
            LabelOperator::NotIn(values) => !value.is_some_and(|value| values.contains(value)),
            LabelOperator::Exists => value.is_some(),
            LabelOperator::DoesNotExist => value.is_none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selector(operator: LabelOperator) -> Selector {
        Selector([Requirement { key: "app".into(), operator }].into())
    }

    #[test]
    fn a_missing_label_matches_not_in_and_does_not_exist() {
        let (web, none) = (Labels::from([("app".into(), "web".into())]), Labels::default());
        let lists = [["web".into()].into(), ["db".into()].into()] as [Box<[Name]>; 2];
        let [web_only, other] = lists;
        assert!(
            selector(LabelOperator::In(web_only.clone())).matches(&web)
                && !selector(LabelOperator::In(web_only.clone())).matches(&none)
        );
        assert!(
            !selector(LabelOperator::NotIn(web_only.clone())).matches(&web)
                && selector(LabelOperator::NotIn(web_only)).matches(&none)
        );
        assert!(!selector(LabelOperator::In(other)).matches(&web));
        assert!(selector(LabelOperator::Exists).matches(&web) && !selector(LabelOperator::Exists).matches(&none));
        assert!(
            !selector(LabelOperator::DoesNotExist).matches(&web)
                && selector(LabelOperator::DoesNotExist).matches(&none)
        );
        assert!(Selector::default().matches(&none));
    }
}
