//! `beeline crds`: the definitions of the policies, for `kubectl apply`.

use anyhow::Context;
use beeline_cluster::policy::{definition_yaml, definitions};
use std::process::ExitCode;

pub fn run() -> anyhow::Result<ExitCode> {
    for definition in definitions() {
        print!("{}", definition_yaml(&definition).context("the definition cannot be written as YAML")?);
    }
    Ok(ExitCode::SUCCESS)
}
