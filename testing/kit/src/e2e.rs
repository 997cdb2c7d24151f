//! Upstream's own end-to-end specs, unchanged, against the cluster that is up.

use std::{fs, path::PathBuf, process::Command, time::Duration};

use anyhow::{Result, ensure};

use crate::{
    Cluster, Place, call,
    junit::{self, Spec},
    plan, progress, state,
};

/// Specs that no proxy can pass here: SCTP is not in every kernel, and a disruptive spec would end the cluster.
pub const SKIP: &str = r"\[Disruptive\]|\[Serial\]|SCTP";

pub struct Run {
    pub name: String,
    /// Regular expressions on the names of specs.
    pub focus: String,
    pub skip: String,
    pub processes: u8,
    pub limit: Duration,
}

impl Run {
    /// Prints the table, and gives the specs that ran. That one of them failed is for the caller to judge.
    pub fn start(&self, cluster: &Cluster) -> Result<Vec<Spec>> {
        let program = cluster.cache.program("e2e.test");
        ensure!(program.exists(), "{} is missing: run `kit build --e2e`", program.display());
        let dir = cluster.cache.fresh(&format!("e2e/{}", self.name))?;
        let ran = progress::step(&format!("specs (log: {})", dir.join("log").display()), || {
            // Fails when a spec fails; which did, the reports say better.
            let _ = call::run_logged(&mut self.command(cluster, &program, &dir)?, &dir.join("log"));
            junit::read(&dir)
        })?;
        let table = junit::table(&ran);
        fs::write(dir.join("summary.txt"), &table)?;
        print!("{table}");
        Ok(ran)
    }

    fn command(&self, cluster: &Cluster, program: &PathBuf, dir: &PathBuf) -> Result<Command> {
        let seconds = format!("{}s", self.limit.as_secs());
        let mut command = cluster.command(Place::Control)?;
        command.args(["timeout", &seconds]).arg(cluster.cache.program("ginkgo")).current_dir(dir);
        command.args([format!("--procs={}", self.processes), format!("--timeout={seconds}"), "--no-color".into()]);
        command.args([format!("--focus={}", self.focus), format!("--skip={}", self.skip)]).arg(program);
        command.args(["--", "--provider=skeleton", "--node-os-distro=debian", "--disable-log-dump=true"]);
        command.args(["--dump-logs-on-failure=false".into(), format!("--host={}", plan::api_url())]);
        command.arg(format!("--kubeconfig={}", state::kubeconfig("admin").display()));
        command.args([format!("--num-nodes={}", cluster.shape.nodes), format!("--report-dir={}", dir.display())]);
        Ok(command)
    }
}
