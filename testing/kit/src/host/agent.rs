//! Beeline's agent on a host outside the cluster, with files and pins of its own, and commands that query it.
//!
//! ```no_run
//! # fn main() -> anyhow::Result<()> {
//! use kit::host::{OutsideHost, HostRoute};
//! let host = OutsideHost::create("h1".parse()?, HostRoute::Static)?;
//! let kubeconfig = format!("--kubeconfig={}", host.kubeconfig().display());
//! let agent = host.agent(&["--host-role=outside", &kubeconfig])?;
//! agent.start()?;
//! agent.dial("10.97.0.10:80")?;
//! # Ok(()) }
//! ```

use std::{fs, path::PathBuf, process::Output};

use anyhow::{Context, Result};
use serde_json::Value;

use super::OutsideHost;
use crate::{
    address_plan::NAME,
    agent,
    component::Component,
    namespace, network, state,
    wait::{self, Timeout},
};

/// Name of the agent's configuration file, if it has one.
const CONFIG_FILE: &str = "beeline.yaml";

/// Beeline's agent on a host. The agent, its files and its pins are removed with the host.
pub struct HostAgent<'a> {
    outside: &'a OutsideHost,
    pub component: Component,
}

impl OutsideHost {
    /// The agent with additional options; it is not started.
    pub fn agent(&self, arguments: &[&str]) -> Result<HostAgent<'_>> {
        fs::create_dir_all(self.files()).with_context(|| format!("cannot create {}", self.files().display()))?;
        fs::create_dir_all(self.cgroup()?).with_context(|| format!("cannot create the cgroup of {}", self.host))?;
        let binary = agent::binary(None)?.display().to_string();
        let state_dir = self.files().join("disk");
        let own = [
            binary,
            "agent".into(),
            format!("--cgroup={}", self.cgroup()?.display()),
            format!("--state-dir={}", state_dir.display()),
            format!("--snapshot-dir={}", state_dir.join("snapshot").display()),
        ];
        let arguments = arguments.iter().map(|word| (*word).to_owned());
        let component =
            self.component(agent::NAME, own.into_iter().chain(self.agent_options()).chain(arguments).collect())?;
        Ok(HostAgent { outside: self, component })
    }

    /// The agent with a configuration file, in JSON, which is valid YAML; see [`HostAgent::configure`].
    pub fn agent_with_config(&self, file: &Value, arguments: &[&str]) -> Result<HostAgent<'_>> {
        let option = format!("--config={}", self.files().join(CONFIG_FILE).display());
        let agent = self.agent(&[&[option.as_str()], arguments].concat())?;
        agent.configure(&file.to_string())?;
        Ok(agent)
    }

    /// Options by which a beeline command finds this host's agent.
    pub fn agent_options(&self) -> [String; 2] {
        let pin_dir = super::pin_dir(&format!("{NAME}-{}", self.host));
        [format!("--pin-dir={}", pin_dir.display()), self.socket()]
    }

    fn socket(&self) -> String {
        format!("--socket={}", self.files().join("beeline.sock").display())
    }
}

impl HostAgent<'_> {
    /// Starts the agent and waits until its health endpoint reports that everything is programmed.
    pub fn start(&self) -> Result<()> {
        self.component.start()?;
        wait::until(Timeout::new(format!("Beeline on {}", self.outside.host), 60, self.component.log()), || {
            self.component.require_running()?;
            let healthy = || network::is_healthy([127, 0, 0, 1].into(), 10256);
            Ok(namespace::run_in(&self.outside.host.namespace(), healthy)?.then_some(()))
        })
    }

    /// Stops the agent. The programmed maps stay in effect.
    pub fn stop(&self) -> Result<()> {
        self.component.stop()
    }

    /// Sends SIGKILL.
    pub fn kill(&self) -> Result<()> {
        self.component.kill()
    }

    /// Simulates a power-off: stops the agent, detaches the hooks and removes the pins. Only the state directory
    /// remains.
    pub fn shut_down(&self) -> Result<()> {
        self.stop()?;
        self.run(&["cleanup"]).map(drop)
    }

    /// Replaces the agent's configuration file atomically.
    pub fn configure(&self, text: &str) -> Result<()> {
        let (file, temporary) = (self.config_file(), self.config_file().with_extension("new"));
        state::write(&temporary, text)?;
        fs::rename(&temporary, &file).with_context(|| format!("cannot replace {}", file.display()))
    }

    pub fn config_file(&self) -> PathBuf {
        self.outside.files().join(CONFIG_FILE)
    }

    /// The agent's `--state-dir`. Snapshots are in `snapshot` below it.
    pub fn state_dir(&self) -> PathBuf {
        self.outside.files().join("disk")
    }

    /// Runs a beeline command, such as `status`, and returns its output.
    pub fn run(&self, arguments: &[&str]) -> Result<String> {
        let options = self.outside.agent_options();
        let binary = agent::binary(None)?.display().to_string();
        self.outside.run(&[&[binary.as_str()], arguments, &[&options[0], &options[1]]].concat())
    }

    /// Runs a beeline command with `-o json` and parses its output.
    pub fn run_json(&self, arguments: &[&str]) -> Result<Value> {
        let output = self.run(&[arguments, &["-o", "json"]].concat())?;
        serde_json::from_str(&output).with_context(|| format!("beeline {arguments:?} printed {output}"))
    }

    pub fn status(&self) -> Result<Value> {
        self.run_json(&["status"])
    }

    /// The status of one cluster, or null if the agent has none of that name.
    pub fn cluster(&self, name: &str) -> Result<Value> {
        let status = self.status()?;
        let all = status["clusters"].as_array().cloned().unwrap_or_default();
        Ok(all.into_iter().find(|cluster| cluster["name"] == name).unwrap_or(Value::Null))
    }

    /// Messages of all refusals with this reason.
    pub fn refusals(&self, reason: &str) -> Result<Vec<String>> {
        let status = self.status()?;
        let all = status["refusals"].as_array().cloned().unwrap_or_default();
        let matching = all.iter().filter(|refusal| refusal["reason"] == reason);
        Ok(matching.map(|refusal| refusal["message"].as_str().unwrap_or_default().to_owned()).collect())
    }

    pub fn metrics(&self) -> Result<String> {
        self.outside.run(&["curl", "-s", "--max-time", "5", "http://127.0.0.1:10249/metrics"])
    }

    /// Name of the server that answers; see [`OutsideHost::dial`].
    pub fn dial(&self, at: &str) -> Result<String> {
        self.outside.dial(at)
    }

    /// Dials in a view; see [`OutsideHost::dial`].
    pub fn dial_in_view(&self, view: &str, at: &str) -> Result<String> {
        let arguments = self.view_command(view, &["sh", "-c", &super::dial_script(at)])?;
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        Ok(self.outside.run(&arguments)?.trim().to_owned())
    }

    /// Command line that runs a command in a view.
    pub fn view_command(&self, view: &str, arguments: &[&str]) -> Result<Vec<String>> {
        let binary = agent::binary(None)?.display().to_string();
        let own = [binary, "run".into(), format!("--view={view}"), self.outside.socket(), "--".into()];
        Ok(own.into_iter().chain(arguments.iter().map(|word| (*word).to_owned())).collect())
    }

    /// Runs a program on the host and returns its output, also if it fails.
    pub fn output(&self, arguments: &[String]) -> Result<Output> {
        let mut command = self.outside.command()?;
        command.args(arguments).output().with_context(|| format!("cannot run {arguments:?}"))
    }
}
