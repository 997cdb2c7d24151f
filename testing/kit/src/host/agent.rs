//! Beeline on a host: its agent, with files and pins of the host's own, and what is asked and dialled beside it.
//!
//! ```no_run
//! # fn main() -> anyhow::Result<()> {
//! use kit::host::{Outside, Road};
//! let host = Outside::make("h1".parse()?, Road::Static)?;
//! let kubeconfig = format!("--kubeconfig={}", host.kubeconfig().display());
//! let resolver = host.resolver(&["--stand=outside", &kubeconfig])?;
//! resolver.start()?;
//! resolver.dial("10.97.0.10:80")?;
//! # Ok(()) }
//! ```

use std::{fs, path::PathBuf, process::Output};

use anyhow::{Context, Result};
use serde_json::Value;

use super::Outside;
use crate::{
    agent, namespace, network,
    part::Part,
    plan::NAME,
    state,
    wait::{self, Patience},
};

/// As the file of options is called where there is one.
const FILE: &str = "beeline.yaml";

/// What a host has of Beeline. The agent ends with the host, and so do its files and pins.
pub struct Resolver<'a> {
    outside: &'a Outside,
    pub part: Part,
}

impl Outside {
    /// The agent, not yet started; `words` say all that the host does not.
    pub fn resolver(&self, words: &[&str]) -> Result<Resolver<'_>> {
        fs::create_dir_all(self.files()).with_context(|| format!("make {}", self.files().display()))?;
        fs::create_dir_all(self.cgroup()?).with_context(|| format!("make the cgroup of {}", self.host))?;
        let binary = agent::binary(None)?.display().to_string();
        let disk = self.files().join("disk");
        let own = [
            binary,
            "agent".into(),
            format!("--cgroup={}", self.cgroup()?.display()),
            format!("--state-dir={}", disk.display()),
            format!("--snapshot-dir={}", disk.join("snapshot").display()),
        ];
        let words = words.iter().map(|word| (*word).to_owned());
        let part = self.part(agent::NAME, own.into_iter().chain(self.door()).chain(words).collect())?;
        Ok(Resolver { outside: self, part })
    }

    /// The same with a file of options; see [`Resolver::configure`]. JSON is YAML.
    pub fn configured(&self, file: &Value, words: &[&str]) -> Result<Resolver<'_>> {
        let option = format!("--config={}", self.files().join(FILE).display());
        let resolver = self.resolver(&[&[option.as_str()], words].concat())?;
        resolver.configure(&file.to_string())?;
        Ok(resolver)
    }

    /// The options by which a command of Beeline finds this host's agent.
    pub fn door(&self) -> [String; 2] {
        let pins = super::pins(&format!("{NAME}-{}", self.host));
        [format!("--pin-dir={}", pins.display()), self.socket()]
    }

    fn socket(&self) -> String {
        format!("--socket={}", self.files().join("beeline.sock").display())
    }
}

impl Resolver<'_> {
    /// Until it says itself that all is programmed.
    pub fn start(&self) -> Result<()> {
        self.part.start()?;
        wait::until(Patience::new(format!("Beeline on {}", self.outside.host), 60, self.part.log()), || {
            self.part.require_running()?;
            let healthy = || network::is_healthy([127, 0, 0, 1].into(), 10256);
            Ok(namespace::run_in(&self.outside.host.namespace(), healthy)?.then_some(()))
        })
    }

    /// What it has programmed stays.
    pub fn stop(&self) -> Result<()> {
        self.part.stop()
    }

    /// SIGKILL.
    pub fn kill(&self) -> Result<()> {
        self.part.kill()
    }

    /// Off and without power: nothing is attached nor pinned any more, only the disk remains.
    pub fn shut_down(&self) -> Result<()> {
        self.stop()?;
        self.ask(&["cleanup"]).map(drop)
    }

    /// Writes its file of options anew, at once.
    pub fn configure(&self, text: &str) -> Result<()> {
        let (file, aside) = (self.file(), self.file().with_extension("new"));
        state::write(&aside, text)?;
        fs::rename(&aside, &file).with_context(|| format!("replace {}", file.display()))
    }

    pub fn file(&self) -> PathBuf {
        self.outside.files().join(FILE)
    }

    /// What it keeps over a restart: `--state-dir`, with the snapshots in `snapshot`.
    pub fn disk(&self) -> PathBuf {
        self.outside.files().join("disk")
    }

    /// What another command of Beeline says, such as `status -o json`.
    pub fn ask(&self, words: &[&str]) -> Result<String> {
        let door = self.outside.door();
        let binary = agent::binary(None)?.display().to_string();
        self.outside.run(&[&[binary.as_str()], words, &[&door[0], &door[1]]].concat())
    }

    /// In JSON.
    pub fn ask_json(&self, words: &[&str]) -> Result<Value> {
        let said = self.ask(&[words, &["-o", "json"]].concat())?;
        serde_json::from_str(&said).with_context(|| format!("{words:?}: {said}"))
    }

    pub fn status(&self) -> Result<Value> {
        self.ask_json(&["status"])
    }

    /// What `status` says of a cluster; null where it knows none of that name.
    pub fn cluster(&self, name: &str) -> Result<Value> {
        let status = self.status()?;
        let all = status["clusters"].as_array().cloned().unwrap_or_default();
        Ok(all.into_iter().find(|cluster| cluster["name"] == name).unwrap_or(Value::Null))
    }

    /// Why and what to do, for each refusal with this reason.
    pub fn refused(&self, reason: &str) -> Result<Vec<String>> {
        let status = self.status()?;
        let all = status["refusals"].as_array().cloned().unwrap_or_default();
        let mine = all.iter().filter(|refusal| refusal["reason"] == reason);
        Ok(mine.map(|refusal| refusal["message"].as_str().unwrap_or_default().to_owned()).collect())
    }

    pub fn metrics(&self) -> Result<String> {
        self.outside.run(&["curl", "-s", "--max-time", "5", "http://127.0.0.1:10249/metrics"])
    }

    /// Who answers; see [`Outside::dial`].
    pub fn dial(&self, at: &str) -> Result<String> {
        self.outside.dial(at)
    }

    /// The same by one who sees another cluster first.
    pub fn dial_in(&self, view: &str, at: &str) -> Result<String> {
        let words = self.in_view(view, &["sh", "-c", &super::dialling(at)])?;
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        Ok(self.outside.run(&words)?.trim().to_owned())
    }

    /// `words` as a command in a view.
    pub fn in_view(&self, view: &str, words: &[&str]) -> Result<Vec<String>> {
        let binary = agent::binary(None)?.display().to_string();
        let own = [binary, "run".into(), format!("--view={view}"), self.outside.socket(), "--".into()];
        Ok(own.into_iter().chain(words.iter().map(|word| (*word).to_owned())).collect())
    }

    /// A program on the host, whatever becomes of it.
    pub fn attempt(&self, words: &[String]) -> Result<Output> {
        let mut command = self.outside.command()?;
        command.args(words).output().with_context(|| format!("run {words:?}"))
    }
}
