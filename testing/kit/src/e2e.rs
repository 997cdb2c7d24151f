//! Runs upstream's unchanged end-to-end specs against the running cluster.

use std::{fs, path::PathBuf, process::Command, time::Duration};

use anyhow::{Result, ensure};

use crate::{
    Location, TestCluster, address_plan,
    junit::{self, Spec},
    progress, state, subprocess,
};

/// Specs that cannot pass in the kit: SCTP is not in every kernel, and disruptive specs stop the cluster.
pub const SKIP: &str = r"\[Disruptive\]|\[Serial\]|SCTP";

pub struct SpecRun {
    pub name: String,
    /// Regular expressions on the names of specs.
    pub focus: String,
    pub skip: String,
    pub processes: u8,
    pub limit: Duration,
}

impl SpecRun {
    /// Prints the results and returns the specs that ran, including failed ones.
    pub fn start(&self, cluster: &TestCluster) -> Result<Vec<Spec>> {
        let program = cluster.cache.program("e2e.test");
        ensure!(program.exists(), "{} is missing: run `kit build --e2e`", program.display());
        let dir = cluster.cache.fresh(&format!("e2e/{}", self.name))?;
        let specs = progress::step(&format!("specs (log: {})", dir.join("log").display()), || {
            // The exit status only says that a spec failed; the reports contain the details.
            let _ = subprocess::run_logged(&mut self.command(cluster, &program, &dir)?, &dir.join("log"));
            junit::read(&dir)
        })?;
        let table = junit::table(&specs);
        fs::write(dir.join("summary.txt"), &table)?;
        print!("{table}");
        Ok(specs)
    }

    fn command(&self, cluster: &TestCluster, program: &PathBuf, dir: &PathBuf) -> Result<Command> {
        let seconds = format!("{}s", self.limit.as_secs());
        let mut command = cluster.command(Location::ControlPlane)?;
        command.args(["timeout", &seconds]).arg(cluster.cache.program("ginkgo")).current_dir(dir);
        command.args([format!("--procs={}", self.processes), format!("--timeout={seconds}"), "--no-color".into()]);
        command.args([format!("--focus={}", self.focus), format!("--skip={}", self.skip)]).arg(program);
        command.args(["--", "--provider=skeleton", "--node-os-distro=debian", "--disable-log-dump=true"]);
        command.args(["--dump-logs-on-failure=false".into(), format!("--host={}", address_plan::api_url())]);
        command.arg(format!("--kubeconfig={}", state::kubeconfig("admin").display()));
        command.args([format!("--num-nodes={}", cluster.config.nodes), format!("--report-dir={}", dir.display())]);
        Ok(command)
    }
}
