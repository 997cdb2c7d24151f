//! Label selectors: what a policy chooses pods, namespaces and nodes by.

use crate::name::Name;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub type Labels = BTreeMap<Name, Name>;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Demand {
    In(Box<[Name]>),
    NotIn(Box<[Name]>),
    Exists,
    DoesNotExist,
}

/// What it asks of one label.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requirement {
    pub key: Name,
    pub demand: Demand,
}

/// All of its requirements must hold; without any it chooses everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Selector(pub Box<[Requirement]>);

impl Selector {
    pub fn matches(&self, labels: &Labels) -> bool {
        self.0.iter().all(|requirement| requirement.holds(labels))
    }
}

impl Requirement {
    /// As Kubernetes has it: a label that is not there is not in any list.
    fn holds(&self, labels: &Labels) -> bool {
        let value = labels.get(&self.key);
        match &self.demand {
            Demand::In(values) => value.is_some_and(|value| values.contains(value)),
            Demand::NotIn(values) => !value.is_some_and(|value| values.contains(value)),
            Demand::Exists => value.is_some(),
            Demand::DoesNotExist => value.is_none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selector(demand: Demand) -> Selector {
        Selector([Requirement { key: "app".into(), demand }].into())
    }

    #[test]
    fn a_label_that_is_not_there_is_in_no_list() {
        let (web, none) = (Labels::from([("app".into(), "web".into())]), Labels::default());
        let lists = [["web".into()].into(), ["db".into()].into()] as [Box<[Name]>; 2];
        let [ours, other] = lists;
        assert!(selector(Demand::In(ours.clone())).matches(&web) && !selector(Demand::In(ours.clone())).matches(&none));
        assert!(!selector(Demand::NotIn(ours.clone())).matches(&web) && selector(Demand::NotIn(ours)).matches(&none));
        assert!(!selector(Demand::In(other)).matches(&web));
        assert!(selector(Demand::Exists).matches(&web) && !selector(Demand::Exists).matches(&none));
        assert!(!selector(Demand::DoesNotExist).matches(&web) && selector(Demand::DoesNotExist).matches(&none));
        assert!(Selector::default().matches(&none));
    }
}
