//! `beeline crds`: the definitions of the policies, for `kubectl apply`.

use anyhow::Context;
use beeline_cluster::policy::{definition_yaml, definitions};
use std::io::Write;
use std::process::ExitCode;

pub fn run() -> anyhow::Result<ExitCode> {
    for definition in definitions() {
        let text = definition_yaml(&definition).context("the definition cannot be written as YAML")?;
        // A reader that has seen enough (head) is no error.
        let _ = std::io::stdout().write_all(text.as_bytes());
    }
    Ok(ExitCode::SUCCESS)
}
