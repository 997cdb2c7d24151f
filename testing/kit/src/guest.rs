//! Virtual machines: Debian with systemd under qemu without KVM. The disk is a copy of the one that scripts/guest.sh
//! builds. Files for the guest are on a second disk, mounted at /seed.
//!
//! ```no_run
//! # fn main() -> anyhow::Result<()> {
//! use kit::guest::{Guest, GuestConfig, GuestLink};
//! let guest = Guest::boot(&GuestConfig { link: GuestLink::Bridge, files: vec![] })?;
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
    address_plan::NodeId,
    component::Component,
    namespace::Location,
    state,
    wait::{self, Timeout},
};
use channel::QemuChannel;

/// Seconds. Without KVM on two busy cores a boot takes minutes.
const BOOT_LIMIT: u64 = 900;
const COMMAND_LIMIT: Duration = Duration::from_secs(300);

/// Network connection of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestLink {
    /// A port of the nodes' bridge. The guest is a host of its own, whose router forwards to pods.
    Bridge,
    /// passt on a node: a process of that node opens the guest's connections.
    Passt(NodeId),
}

impl GuestLink {
    fn location(self) -> Location {
        match self {
            GuestLink::Bridge => Location::ControlPlane,
            GuestLink::Passt(node) => Location::Node(node),
        }
    }
}

#[derive(Clone, Debug)]
pub struct GuestConfig {
    pub link: GuestLink,
    /// Files to copy to /seed.
    pub files: Vec<PathBuf>,
}

/// A running guest, at most one for each link. It is stopped when the value is dropped, or with the cluster.
pub struct Guest {
    link: GuestLink,
    machine: Component,
}

/// Exit code and output of a command in the guest.
#[derive(Debug)]
pub struct CommandOutput {
    pub code: i64,
    pub out: String,
    pub err: String,
}

impl Guest {
    /// Boots a guest. Returns when commands can be run; services may still be starting, see
    /// [`Guest::wait_for_services`].
    pub fn boot(config: &GuestConfig) -> Result<Guest> {
        let dir = dir(config.link);
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        seed::make(&dir, config)?;
        machine::copy_disk(&dir)?;
        match config.link {
            GuestLink::Bridge => crate::network::add_tap()?,
            GuestLink::Passt(node) => passt::start(node, &dir)?,
        }
        let guest = Guest { link: config.link, machine: machine::component(config.link, &dir)? };
        guest.machine.start()?;
        guest.wait_for_boot(None)?;
        Ok(guest)
    }

    /// Waits until systemd has started all units. The error names units that failed.
    pub fn wait_for_services(&self) -> Result<()> {
        let output = self.output("systemctl is-system-running --wait; systemctl --failed --no-legend --plain")?;
        ensure!(output.out.starts_with("running\n"), "the guest's system state is not running: {}", output.out);
        // A unit that was skipped because its dependency failed is not listed as failed.
        self.run("systemctl is-active systemd-networkd systemd-resolved").map(drop)
    }

    /// Runs a shell script as root and returns its output. Fails if the script fails.
    pub fn run(&self, script: &str) -> Result<String> {
        let CommandOutput { code, out, err } = self.output(script)?;
        ensure!(code == 0, "the guest's command `{script}` exited with {code}: {out}{err}");
        Ok(out)
    }

    pub fn output(&self, script: &str) -> Result<CommandOutput> {
        self.channel()?.run(script)
    }

    /// Opens a channel to the guest's agent, and waits while the agent is busy.
    fn channel(&self) -> Result<QemuChannel> {
        wait::until(Timeout::new("the guest's agent", 120, self.console_log()), || {
            self.machine.require_running()?;
            Ok(QemuChannel::open(&self.agent_socket(), COMMAND_LIMIT).ok())
        })
    }

    /// Reboots like an administrator: services are stopped and files are written.
    pub fn reboot(&self) -> Result<Duration> {
        let start = Instant::now();
        let before = self.boot_id()?;
        self.channel()?.start_and_forget("systemctl reboot")?;
        self.wait_for_boot(Some(&before))?;
        Ok(start.elapsed())
    }

    /// Resets the machine like a power cut.
    pub fn reset(&self) -> Result<()> {
        let before = self.boot_id()?;
        self.call_monitor("system_reset", json!({}))?;
        self.wait_for_boot(Some(&before))
    }

    /// Connects or disconnects the network cable.
    pub fn set_link(&self, up: bool) -> Result<()> {
        self.call_monitor("set_link", json!({"name": machine::NETWORK, "up": up}))
    }

    pub fn boot_id(&self) -> Result<String> {
        self.run("cat /proc/sys/kernel/random/boot_id")
    }

    /// Log file of the guest's console.
    pub fn console_log(&self) -> PathBuf {
        dir(self.link).join("console.log")
    }

    fn agent_socket(&self) -> PathBuf {
        dir(self.link).join(machine::AGENT)
    }

    fn call_monitor(&self, command: &str, arguments: serde_json::Value) -> Result<()> {
        let mut channel = QemuChannel::monitor(&dir(self.link).join(machine::MONITOR))?;
        channel.call(command, arguments).map(drop)
    }

    /// Waits for a boot id other than `before`. A guest that is shutting down may still answer with its old boot id.
    fn wait_for_boot(&self, before: Option<&str>) -> Result<()> {
        let timeout = Timeout::new("the guest's agent", BOOT_LIMIT, self.console_log());
        wait::until(timeout, || {
            self.machine.require_running()?;
            let short = Duration::from_secs(60);
            let answer = QemuChannel::open(&self.agent_socket(), short)
                .and_then(|mut channel| channel.run("cat /proc/sys/kernel/random/boot_id"));
            Ok(answer.ok().filter(|output| output.code == 0 && Some(output.out.as_str()) != before).map(drop))
        })
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.machine.kill(); // `kit down` stops it too.
        if let GuestLink::Passt(node) = self.link {
            let _ = passt::stop(node);
        }
    }
}

fn dir(link: GuestLink) -> PathBuf {
    state::path("guest").join(link.location().name())
}
