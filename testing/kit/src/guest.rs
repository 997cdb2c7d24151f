//! A virtual machine beside the pods: a Debian with systemd, as a user has one, under qemu without KVM. Its disk is a copy
//! of the one that scripts/guest.sh makes; what is given to it lies on a second disk, at /seed.
//!
//! ```no_run
//! # fn main() -> anyhow::Result<()> {
//! let guest = kit::guest::Guest::boot(&kit::guest::Wish { link: kit::guest::Link::Switch, files: vec![] })?;
//! assert_eq!(guest.run("systemctl is-active systemd-resolved")?, "active\n");
//! guest.reboot()?;
//! # Ok(()) }
//! ```

mod channel;
mod machine;
mod passt;
mod seed;

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use crate::{
    namespace::Place,
    part::Part,
    plan::Node,
    state,
    wait::{self, Patience},
};
use channel::Channel;

/// Without KVM, on two busy cores.
const BOOT_LIMIT: u64 = 900;
const COMMAND_LIMIT: Duration = Duration::from_secs(300);

/// How a guest reaches the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// A port of the switch that the nodes are on: a host of its own, with a route to the pods by its router.
    Switch,
    /// By passt on a node: what the guest dials, a process of that node dials for it.
    Passt(Node),
}

impl Link {
    fn place(self) -> Place {
        match self {
            Link::Switch => Place::Control,
            Link::Passt(node) => Place::Node(node),
        }
    }
}

#[derive(Clone, Debug)]
pub struct Wish {
    pub link: Link,
    /// Copied to /seed under their own names.
    pub files: Vec<PathBuf>,
}

/// One that runs. There is at most one for each place; it ends when this is dropped, or with the cluster.
pub struct Guest {
    link: Link,
    machine: Part,
}

/// What a command in the guest left.
#[derive(Debug)]
pub struct Outcome {
    pub code: i64,
    pub out: String,
    pub err: String,
}

impl Guest {
    /// Returns when commands can be run, which may be before all services are up: see [`Guest::settle`].
    pub fn boot(wish: &Wish) -> Result<Guest> {
        let dir = dir(wish.link);
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
        seed::make(&dir, wish)?;
        machine::copy_disk(&dir)?;
        match wish.link {
            Link::Switch => crate::network::add_tap()?,
            Link::Passt(node) => passt::start(node, &dir)?,
        }
        let guest = Guest { link: wish.link, machine: machine::part(wish.link, &dir)? };
        guest.machine.start()?;
        guest.wait_for_boot(None)?;
        Ok(guest)
    }

    /// Until all that starts with the system has started, or has failed: then the error names it.
    pub fn settle(&self) -> Result<()> {
        let outcome = self.outcome("systemctl is-system-running --wait; systemctl --failed --no-legend --plain")?;
        ensure!(outcome.out.starts_with("running\n"), "the guest is not well: {}", outcome.out);
        // What was left out because something before it failed has not failed itself.
        self.run("systemctl is-active systemd-networkd systemd-resolved").map(drop)
    }

    /// Runs a shell script as root; gives what it printed, and fails if it does.
    pub fn run(&self, script: &str) -> Result<String> {
        let Outcome { code, out, err } = self.outcome(script)?;
        ensure!(code == 0, "in the guest, `{script}` ended with {code}: {out}{err}");
        Ok(out)
    }

    pub fn outcome(&self, script: &str) -> Result<Outcome> {
        self.channel()?.run(script)
    }

    /// To an agent that is there, if it may be busy.
    fn channel(&self) -> Result<Channel> {
        wait::until(Patience::new("the guest's agent", 120, self.console()), || {
            self.machine.require_running()?;
            Ok(Channel::open(&self.agent(), COMMAND_LIMIT).ok())
        })
    }

    /// As an administrator would: services are stopped, files are written.
    pub fn reboot(&self) -> Result<Duration> {
        let start = Instant::now();
        let before = self.boot_id()?;
        self.channel()?.leave("systemctl reboot")?;
        self.wait_for_boot(Some(&before))?;
        Ok(start.elapsed())
    }

    /// As a power cut would.
    pub fn reset(&self) -> Result<()> {
        let before = self.boot_id()?;
        self.monitor("system_reset", json!({}))?;
        self.wait_for_boot(Some(&before))
    }

    /// Pulls the network cable, or plugs it in.
    pub fn plug(&self, up: bool) -> Result<()> {
        self.monitor("set_link", json!({"name": machine::NETWORK, "up": up}))
    }

    pub fn boot_id(&self) -> Result<String> {
        self.run("cat /proc/sys/kernel/random/boot_id")
    }

    /// What it wrote to its console.
    pub fn console(&self) -> PathBuf {
        dir(self.link).join("console.log")
    }

    fn agent(&self) -> PathBuf {
        dir(self.link).join(machine::AGENT)
    }

    fn monitor(&self, command: &str, arguments: serde_json::Value) -> Result<()> {
        let mut channel = Channel::monitor(&dir(self.link).join(machine::MONITOR))?;
        channel.call(command, arguments).map(drop)
    }

    /// A guest that goes down answers no more, or answers still with its old identity.
    fn wait_for_boot(&self, before: Option<&str>) -> Result<()> {
        let patience = Patience::new("the guest's agent", BOOT_LIMIT, self.console());
        wait::until(patience, || {
            self.machine.require_running()?;
            let short = Duration::from_secs(60);
            let asked =
                Channel::open(&self.agent(), short).and_then(|mut it| it.run("cat /proc/sys/kernel/random/boot_id"));
            Ok(asked.ok().filter(|outcome| outcome.code == 0 && Some(outcome.out.as_str()) != before).map(drop))
        })
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.machine.kill(); // `kit down` ends it as well.
        if let Link::Passt(node) = self.link {
            let _ = passt::stop(node);
        }
    }
}

fn dir(link: Link) -> PathBuf {
    state::path("guest").join(link.place().name())
}
