//! JSON protocol of QEMU's monitor and of the agent inside the guest (package qemu-guest-agent), which runs commands in
//! the guest without a network.

use std::{
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    path::Path,
    process,
    sync::atomic::{AtomicU64, Ordering},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use super::CommandOutput;

/// Time limit of the first request. A request to an agent that is starting or stopping is lost and has to be repeated.
const SYNC_TIMEOUT: Duration = Duration::from_secs(5);
/// First and longest interval between two polls of a command. The guest logs each poll to its journal.
const POLL: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(1)];
/// Sequence number of requests.
static NEXT: AtomicU64 = AtomicU64::new(0);

pub struct QemuChannel {
    lines: BufReader<UnixStream>,
    limit: Duration,
}

impl QemuChannel {
    /// Connects to the guest's agent. Responses to requests of earlier connections are skipped.
    pub fn open(socket: &Path, limit: Duration) -> Result<QemuChannel> {
        let mut channel = QemuChannel::connect(socket, SYNC_TIMEOUT)?;
        let id = u64::from(process::id()) << 16 | NEXT.fetch_add(1, Ordering::Relaxed) & 0xffff;
        channel.send("guest-sync", json!({"id": id}))?;
        while channel.response()?["return"] != id {}
        channel.lines.get_ref().set_read_timeout(Some(limit))?;
        channel.limit = limit;
        Ok(channel)
    }

    /// Connects to QEMU's monitor.
    pub fn monitor(socket: &Path) -> Result<QemuChannel> {
        let mut channel = QemuChannel::connect(socket, Duration::from_secs(30))?;
        channel.call("qmp_capabilities", json!({}))?;
        Ok(channel)
    }

    fn connect(socket: &Path, limit: Duration) -> Result<QemuChannel> {
        let stream = UnixStream::connect(socket).with_context(|| format!("cannot connect to {}", socket.display()))?;
        stream.set_read_timeout(Some(limit))?;
        Ok(QemuChannel { lines: BufReader::new(stream), limit })
    }

    pub fn run(&mut self, script: &str) -> Result<CommandOutput> {
        let process = self.start(script)?;
        let (end, mut pause) = (Instant::now() + self.limit, POLL[0]);
        loop {
            let state = self.call("guest-exec-status", json!({"pid": process}))?;
            if state["exited"] == true {
                let text = |name: &str| decode(&state[name]);
                return Ok(CommandOutput {
                    code: state["exitcode"].as_i64().unwrap_or(-1),
                    out: text("out-data")?,
                    err: text("err-data")?,
                });
            }
            if Instant::now() > end {
                bail!("the guest's command `{script}` did not end within {} s", self.limit.as_secs());
            }
            sleep(pause);
            pause = (pause * 3 / 2).min(POLL[1]);
        }
    }

    /// Starts a command that stops the agent itself, such as a reboot.
    pub fn start_and_forget(&mut self, script: &str) -> Result<()> {
        self.start(script).map(drop)
    }

    fn start(&mut self, script: &str) -> Result<i64> {
        let arguments = json!({"path": "/bin/sh", "arg": ["-c", script], "capture-output": true});
        self.call("guest-exec", arguments)?["pid"].as_i64().context("the guest's agent returned no pid")
    }

    pub fn call(&mut self, command: &str, arguments: Value) -> Result<Value> {
        self.send(command, arguments)?;
        let response = self.response()?;
        match response.get("error") {
            Some(error) => bail!("{command}: {error}"),
            None => Ok(response["return"].clone()),
        }
    }

    fn send(&mut self, command: &str, arguments: Value) -> Result<()> {
        let line = json!({"execute": command, "arguments": arguments}).to_string() + "\n";
        self.lines.get_mut().write_all(line.as_bytes()).with_context(|| format!("cannot send {command}"))
    }

    /// Reads the next response, and skips greetings and events.
    fn response(&mut self) -> Result<Value> {
        loop {
            let mut line = String::new();
            if self.lines.read_line(&mut line).context("cannot wait for a response")? == 0 {
                bail!("qemu has ended");
            }
            let value: Value = serde_json::from_str(&line).with_context(|| format!("cannot read {line:?}"))?;
            if value.get("return").is_some() || value.get("error").is_some() {
                return Ok(value);
            }
        }
    }
}

fn decode(text: &Value) -> Result<String> {
    let bytes = STANDARD.decode(text.as_str().unwrap_or_default()).context("cannot decode a command's output")?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
