//! Names of views. The kernel knows numbers; which name has which is the agent's to know.

use beeline_agent::status::Request;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// By number; `None`: no agent answers.
pub fn names(socket: &Path) -> Option<BTreeMap<u32, String>> {
    beeline_agent::ask(socket, &Request::Status)?.ok().as_ref().map(of)
}

/// As `status` has them.
pub fn of(status: &Value) -> BTreeMap<u32, String> {
    let one = |view: &Value| Some((u32::try_from(view["number"].as_u64()?).ok()?, view["name"].as_str()?.to_owned()));
    status["views"].as_array().into_iter().flatten().filter_map(one).collect()
}

/// As people see it: `-` is everybody's.
pub fn shown(names: &BTreeMap<u32, String>, number: u32) -> String {
    match number {
        0 => "-".into(),
        _ => names.get(&number).cloned().unwrap_or_else(|| format!("number {number}")),
    }
}
