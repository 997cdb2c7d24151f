//! The application on the host holds more connections than one process may have open files, so it is several processes
//! that are told what to do at the same moments.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::{
    application::{Done, Order, Reasons},
    way::Way,
};
use crate::{ground::Netns, stats::Samples};

/// Processes of the application.
pub const CREW: usize = 4;

#[derive(Debug, Clone, Copy)]
pub struct Amount {
    /// Connections at the same time.
    pub held: usize,
    /// Dials that are reset.
    pub reset: usize,
    /// Dials that are closed in order.
    pub closed: usize,
}

/// What was tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Feat {
    Held,
    Alive,
    Reset,
    Closed,
}

impl Feat {
    pub fn name(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Alive => "alive",
            Self::Reset => "reset",
            Self::Closed => "closed",
        }
    }
}

/// Of one way.
#[derive(Debug, Default, Clone)]
pub struct Figures {
    /// Least of all rounds.
    pub held: usize,
    /// Of those held, that still answered when all were there.
    pub alive: usize,
    /// Milliseconds until all were there or had failed.
    pub filled: Samples,
    /// Dials per second that succeeded, a sample a round.
    pub reset: Samples,
    pub closed: Samples,
    pub failed: Vec<(Feat, Reasons)>,
}

impl Figures {
    pub fn merge(&mut self, new: Figures) {
        let first = self.filled.len() == 0;
        self.held = if first { new.held } else { self.held.min(new.held) };
        self.alive = if first { new.alive } else { self.alive.min(new.alive) };
        self.filled.extend(&new.filled);
        self.reset.extend(&new.reset);
        self.closed.extend(&new.closed);
        self.failed.extend(new.failed);
    }

    pub fn failures(&self, of: Feat) -> usize {
        self.failed.iter().filter(|(feat, _)| *feat == of).flat_map(|(_, reasons)| reasons.values()).sum()
    }
}

/// Lets this process, and all that it starts later, open as many files as one of the crew needs.
pub fn allow_files(amount: Amount) -> Result<()> {
    let (number, now) = ((amount.held.div_ceil(CREW) + 500) as u64, getrlimit(Resource::Nofile));
    if now.current.is_none_or(|limit| limit >= number) {
        return Ok(());
    }
    let set =
        setrlimit(Resource::Nofile, Rlimit { current: Some(number), maximum: now.maximum.map(|m| m.max(number)) });
    ensure!(set.is_ok(), "{number} open files are needed, and {:?} allowed: ulimit -n {number}", now.maximum);
    Ok(())
}

struct Member {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

/// Ends with the last order, when it is dropped.
pub struct Crew(Vec<Member>);

impl Crew {
    pub fn start(host: &Netns, way: Way) -> Result<Crew> {
        let start = |number| Member::start(host, way, number).with_context(|| format!("application {number}"));
        (0..CREW).map(start).collect::<Result<_>>().map(Crew)
    }

    pub fn measure(&mut self, amount: Amount) -> Result<Figures> {
        let mut figures = Figures::default();
        let rate = self.rate(amount.reset, Order::Reset, Feat::Reset, &mut figures)?;
        figures.reset.push(rate);
        let (held, took) = self.tell(amount.held, Order::Hold)?;
        figures.filled.push(took.as_millis() as u64);
        figures.held = held.good;
        figures.failed.push((Feat::Held, held.failed));
        let (alive, _) = self.tell(0, |_| Order::Ask)?;
        figures.alive = alive.good;
        figures.failed.push((Feat::Alive, alive.failed));
        self.tell(0, |_| Order::LetGo)?;
        let rate = self.rate(amount.closed, Order::Close, Feat::Closed, &mut figures)?;
        figures.closed.push(rate);
        Ok(figures)
    }

    /// Dials per second; those that failed took their time as well.
    fn rate(&mut self, number: usize, order: fn(usize) -> Order, feat: Feat, figures: &mut Figures) -> Result<u64> {
        let (done, took) = self.tell(number, order)?;
        figures.failed.push((feat, done.failed));
        Ok((done.good as f64 / took.as_secs_f64()).round() as u64)
    }

    /// Everybody its share, and the sum of it when the last is done.
    fn tell(&mut self, number: usize, order: impl Fn(usize) -> Order) -> Result<(Done, Duration)> {
        let start = Instant::now();
        for (member, share) in self.0.iter_mut().zip(shares(number)) {
            member.tell(order(share))?;
        }
        let mut all = Done::default();
        for member in &mut self.0 {
            all.merge(member.hear()?);
        }
        Ok((all, start.elapsed()))
    }
}

fn shares(number: usize) -> impl Iterator<Item = usize> {
    (0..CREW).map(move |member| number / CREW + usize::from(member < number % CREW))
}

impl Member {
    fn start(host: &Netns, way: Way, number: usize) -> Result<Member> {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", host.file().display())).arg("--").arg(std::env::current_exe()?);
        command.args(["application", way.word(), &number.to_string()]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let orders = child.stdin.take().context("its standard input")?;
        let answers = BufReader::new(child.stdout.take().context("its standard output")?);
        Ok(Member { child, orders, answers })
    }

    fn tell(&mut self, order: Order) -> Result<()> {
        writeln!(self.orders, "{}", serde_json::to_string(&order)?).context("the application is gone")
    }

    fn hear(&mut self) -> Result<Done> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        serde_json::from_str(&line).with_context(|| format!("the application said {line:?}"))
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for Member { mut child, orders, .. } in self.0.drain(..) {
            drop(orders);
            let _ = child.wait(); // Its end is all that matters.
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up() {
        for number in [0, 1, 3, 4, 39_999, 40_000] {
            assert_eq!(shares(number).sum::<usize>(), number);
        }
    }
}
