//! Lines of JSON to QEMU: to its monitor, and through it to the agent inside the guest (package qemu-guest-agent), which
//! runs commands there without any network.

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

use super::Outcome;

/// What is said to an agent that is not there yet, or goes down, is lost: better to ask again soon.
const GREETING: Duration = Duration::from_secs(5);
/// Between two looks at a command, at first and later: the guest writes each into its journal.
const POLL: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(1)];
/// Tells one question from another, also from those of another process.
static NEXT: AtomicU64 = AtomicU64::new(0);

pub struct Channel {
    lines: BufReader<UnixStream>,
    limit: Duration,
}

impl Channel {
    /// To the agent. Answers to somebody who asked before and left are passed over.
    pub fn open(socket: &Path, limit: Duration) -> Result<Channel> {
        let mut channel = Channel::connect(socket, GREETING)?;
        let id = u64::from(process::id()) << 16 | NEXT.fetch_add(1, Ordering::Relaxed) & 0xffff;
        channel.send("guest-sync", json!({"id": id}))?;
        while channel.answer()?["return"] != id {}
        channel.lines.get_ref().set_read_timeout(Some(limit))?;
        channel.limit = limit;
        Ok(channel)
    }

    /// To QEMU itself.
    pub fn monitor(socket: &Path) -> Result<Channel> {
        let mut channel = Channel::connect(socket, Duration::from_secs(30))?;
        channel.call("qmp_capabilities", json!({}))?;
        Ok(channel)
    }

    fn connect(socket: &Path, limit: Duration) -> Result<Channel> {
        let stream = UnixStream::connect(socket).with_context(|| format!("connect to {}", socket.display()))?;
        stream.set_read_timeout(Some(limit))?;
        Ok(Channel { lines: BufReader::new(stream), limit })
    }

    pub fn run(&mut self, script: &str) -> Result<Outcome> {
        let process = self.start(script)?;
        let (end, mut pause) = (Instant::now() + self.limit, POLL[0]);
        loop {
            let state = self.call("guest-exec-status", json!({"pid": process}))?;
            if state["exited"] == true {
                let text = |name: &str| decode(&state[name]);
                return Ok(Outcome {
                    code: state["exitcode"].as_i64().unwrap_or(-1),
                    out: text("out-data")?,
                    err: text("err-data")?,
                });
            }
            if Instant::now() > end {
                bail!("in the guest, `{script}` did not end within {} s", self.limit.as_secs());
            }
            sleep(pause);
            pause = (pause * 3 / 2).min(POLL[1]);
        }
    }

    /// Starts what takes the agent down with it.
    pub fn leave(&mut self, script: &str) -> Result<()> {
        self.start(script).map(drop)
    }

    fn start(&mut self, script: &str) -> Result<i64> {
        let words = json!({"path": "/bin/sh", "arg": ["-c", script], "capture-output": true});
        self.call("guest-exec", words)?["pid"].as_i64().context("the guest's agent named no process")
    }

    pub fn call(&mut self, command: &str, arguments: Value) -> Result<Value> {
        self.send(command, arguments)?;
        let answer = self.answer()?;
        match answer.get("error") {
            Some(error) => bail!("{command}: {error}"),
            None => Ok(answer["return"].clone()),
        }
    }

    fn send(&mut self, command: &str, arguments: Value) -> Result<()> {
        let line = json!({"execute": command, "arguments": arguments}).to_string() + "\n";
        self.lines.get_mut().write_all(line.as_bytes()).with_context(|| format!("send {command}"))
    }

    /// The next answer; greetings and events are none.
    fn answer(&mut self) -> Result<Value> {
        loop {
            let mut line = String::new();
            if self.lines.read_line(&mut line).context("wait for an answer")? == 0 {
                bail!("the guest's machine has ended");
            }
            let value: Value = serde_json::from_str(&line).with_context(|| format!("read {line:?}"))?;
            if value.get("return").is_some() || value.get("error").is_some() {
                return Ok(value);
            }
        }
    }
}

fn decode(text: &Value) -> Result<String> {
    let bytes = STANDARD.decode(text.as_str().unwrap_or_default()).context("decode what a command printed")?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
