//! The processes of the application on the host. It has several, because it holds more connections than one process may
//! have open files.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::{
    application::{ApplicationRequest, ApplicationResponse, FailureCounts},
    path::DialPath,
};
use crate::{isolation::BenchNamespace, stats::Samples};

/// Number of processes of the application.
pub const PROCESSES: usize = 4;

#[derive(Debug, Clone, Copy)]
pub struct LoadSize {
    /// Number of connections held at the same time.
    pub held: usize,
    /// Number of dials that are reset.
    pub reset: usize,
    /// Number of dials that are closed normally.
    pub closed: usize,
}

/// Measured operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    Held,
    Alive,
    Reset,
    Closed,
}

impl Operation {
    pub fn name(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Alive => "alive",
            Self::Reset => "reset",
            Self::Closed => "closed",
        }
    }
}

/// Results of one path.
#[derive(Debug, Default, Clone)]
pub struct OutsideFigures {
    /// Number of connections held, the minimum of all rounds.
    pub held: usize,
    /// Number of held connections that still answered when all were open.
    pub alive: usize,
    /// Milliseconds until all connections were open or had failed.
    pub filled: Samples,
    /// Successful dials per second, one sample per round.
    pub reset: Samples,
    pub closed: Samples,
    pub failed: Vec<(Operation, FailureCounts)>,
}

impl OutsideFigures {
    pub fn merge(&mut self, new: OutsideFigures) {
        let first = self.filled.len() == 0;
        self.held = if first { new.held } else { self.held.min(new.held) };
        self.alive = if first { new.alive } else { self.alive.min(new.alive) };
        self.filled.extend(&new.filled);
        self.reset.extend(&new.reset);
        self.closed.extend(&new.closed);
        self.failed.extend(new.failed);
    }

    pub fn failures(&self, of: Operation) -> usize {
        self.failed.iter().filter(|(operation, _)| *operation == of).flat_map(|(_, reasons)| reasons.values()).sum()
    }
}

/// Raises the limit of open files of this process and its children to what one process of the application needs.
pub fn allow_files(load: LoadSize) -> Result<()> {
    let (number, now) = ((load.held.div_ceil(PROCESSES) + 500) as u64, getrlimit(Resource::Nofile));
    if now.current.is_none_or(|limit| limit >= number) {
        return Ok(());
    }
    let set =
        setrlimit(Resource::Nofile, Rlimit { current: Some(number), maximum: now.maximum.map(|m| m.max(number)) });
    ensure!(set.is_ok(), "{number} open files are needed, but {:?} are allowed: run `ulimit -n {number}`", now.maximum);
    Ok(())
}

struct ApplicationProcess {
    child: Child,
    requests: ChildStdin,
    responses: BufReader<ChildStdout>,
}

/// The processes end when the value is dropped.
pub struct ApplicationProcesses(Vec<ApplicationProcess>);

impl ApplicationProcesses {
    pub fn start(host: &BenchNamespace, path: DialPath) -> Result<ApplicationProcesses> {
        let start =
            |number| ApplicationProcess::start(host, path, number).with_context(|| format!("application {number}"));
        (0..PROCESSES).map(start).collect::<Result<_>>().map(ApplicationProcesses)
    }

    pub fn measure(&mut self, load: LoadSize) -> Result<OutsideFigures> {
        let mut figures = OutsideFigures::default();
        let rate = self.rate(load.reset, ApplicationRequest::Reset, Operation::Reset, &mut figures)?;
        figures.reset.push(rate);
        let (held, took) = self.request(load.held, ApplicationRequest::Hold)?;
        figures.filled.push(took.as_millis() as u64);
        figures.held = held.succeeded;
        figures.failed.push((Operation::Held, held.failed));
        let (alive, _) = self.request(0, |_| ApplicationRequest::Check)?;
        figures.alive = alive.succeeded;
        figures.failed.push((Operation::Alive, alive.failed));
        self.request(0, |_| ApplicationRequest::Release)?;
        let rate = self.rate(load.closed, ApplicationRequest::Close, Operation::Closed, &mut figures)?;
        figures.closed.push(rate);
        Ok(figures)
    }

    /// Successful dials per second. The time includes failed dials.
    fn rate(
        &mut self,
        number: usize,
        request: fn(usize) -> ApplicationRequest,
        operation: Operation,
        figures: &mut OutsideFigures,
    ) -> Result<u64> {
        let (done, took) = self.request(number, request)?;
        figures.failed.push((operation, done.failed));
        Ok((done.succeeded as f64 / took.as_secs_f64()).round() as u64)
    }

    /// Sends each process its share, and returns the sum of the responses and the total time.
    fn request(
        &mut self,
        number: usize,
        request: impl Fn(usize) -> ApplicationRequest,
    ) -> Result<(ApplicationResponse, Duration)> {
        let start = Instant::now();
        for (member, share) in self.0.iter_mut().zip(shares(number)) {
            member.send(request(share))?;
        }
        let mut all = ApplicationResponse::default();
        for member in &mut self.0 {
            all.merge(member.receive()?);
        }
        Ok((all, start.elapsed()))
    }
}

fn shares(number: usize) -> impl Iterator<Item = usize> {
    (0..PROCESSES).map(move |member| number / PROCESSES + usize::from(member < number % PROCESSES))
}

impl ApplicationProcess {
    fn start(host: &BenchNamespace, path: DialPath, number: usize) -> Result<ApplicationProcess> {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", host.file().display())).arg("--").arg(std::env::current_exe()?);
        command.args(["application", path.argument(), &number.to_string()]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let requests = child.stdin.take().context("its standard input")?;
        let responses = BufReader::new(child.stdout.take().context("its standard output")?);
        Ok(ApplicationProcess { child, requests, responses })
    }

    fn send(&mut self, request: ApplicationRequest) -> Result<()> {
        writeln!(self.requests, "{}", serde_json::to_string(&request)?).context("the application has ended")
    }

    fn receive(&mut self) -> Result<ApplicationResponse> {
        let mut line = String::new();
        self.responses.read_line(&mut line)?;
        serde_json::from_str(&line).with_context(|| format!("unexpected response of the application: {line:?}"))
    }
}

impl Drop for ApplicationProcesses {
    fn drop(&mut self) {
        for ApplicationProcess { mut child, requests, .. } in self.0.drain(..) {
            drop(requests);
            let _ = child.wait(); // The exit status does not matter.
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_to_the_total() {
        for number in [0, 1, 3, 4, 39_999, 40_000] {
            assert_eq!(shares(number).sum::<usize>(), number);
        }
    }
}
