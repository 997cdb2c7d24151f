//! The names of views. The kernel's tables hold numbers; only a running agent knows the names.

use beeline_api::AgentStatus;
use std::collections::BTreeMap;

#[derive(Clone, Debug, Default)]
pub struct ViewNames(BTreeMap<u32, String>);

impl ViewNames {
    pub fn new(status: &AgentStatus) -> ViewNames {
        ViewNames(status.views.iter().map(|view| (view.number, view.name.clone())).collect())
    }

    pub fn number(&self, name: &str) -> Option<u32> {
        self.0.iter().find(|(_, known)| *known == name).map(|(number, _)| *number)
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.values().map(String::as_str)
    }

    /// `None` for processes without a view. `number N` where the name is not known.
    pub fn label(&self, number: u32) -> Option<String> {
        (number != 0).then(|| self.0.get(&number).cloned().unwrap_or_else(|| format!("number {number}")))
    }
}
