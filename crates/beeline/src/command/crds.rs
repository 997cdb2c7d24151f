//! `beeline crds`: the CustomResourceDefinitions of the policies, for `kubectl apply`.

use anyhow::Context;
use beeline_cluster::policy::{definition_yaml, definitions};
use std::io::Write;
use std::process::ExitCode;

pub fn run() -> anyhow::Result<ExitCode> {
    for definition in definitions() {
        let text = definition_yaml(&definition).context("cannot serialize a CustomResourceDefinition")?;
        // A closed pipe (`| head`) is not an error.
        let _ = std::io::stdout().write_all(text.as_bytes());
    }
    Ok(ExitCode::SUCCESS)
}
