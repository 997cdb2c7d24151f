//! What the plan refuses (conflicts between objects, addresses that are not allowed), said once when it comes and once when
//! it goes: in the log, and to the source, which tells it on the object.

use beeline_model::fact::Refusal;
use beeline_model::planner::Planner;
use std::collections::BTreeSet;
use std::time::Instant;
use tokio::sync::mpsc::Sender;

/// Who is contested is found by looking at every claim, which with a hundred thousand services takes milliseconds: at most
/// one part in so many of the time goes there.
const SHARE: u32 = 50;

pub struct Refused {
    now: Vec<Refusal>,
    /// Something was planned since the last look.
    open: bool,
    next: Instant,
    /// More than it can take at once is in the log.
    source: Sender<Refusal>,
}

impl Refused {
    pub fn new(source: Sender<Refusal>) -> Refused {
        Refused { now: Vec::new(), open: false, next: Instant::now(), source }
    }

    pub fn planned(&mut self) {
        self.open = true;
    }

    pub fn look(&mut self, planner: &Planner) {
        let start = Instant::now();
        if !self.open || start < self.next {
            return;
        }
        self.tell(planner.refusals());
        self.open = false;
        self.next = Instant::now() + start.elapsed() * SHARE;
    }

    /// As of now: what the last look found, unless something was planned since.
    pub fn of(&self, planner: &Planner) -> Vec<Refusal> {
        if self.open { planner.refusals() } else { self.now.clone() }
    }

    fn tell(&mut self, now: Vec<Refusal>) {
        for refusal in say(None, &self.now, &now) {
            let _ = self.source.try_send(refusal.clone());
        }
        self.now = now;
    }
}

/// Logs what came and what went; gives what came. `cluster`: whose source refuses it; the plan's own words name theirs.
pub fn say<'a>(cluster: Option<&str>, before: &[Refusal], now: &'a [Refusal]) -> Vec<&'a Refusal> {
    if before == now {
        return Vec::new();
    }
    let (old, new): (BTreeSet<&Refusal>, BTreeSet<&Refusal>) = (before.iter().collect(), now.iter().collect());
    for Refusal { subject, reason, message } in old.difference(&new) {
        tracing::info!(cluster, subject, reason, "no longer refused: {message}");
    }
    let came: Vec<&Refusal> = new.into_iter().filter(|refusal| !old.contains(*refusal)).collect();
    for Refusal { subject, reason, message } in &came {
        tracing::warn!(cluster, subject, reason, "{message}");
    }
    came
}

pub fn gone(refusal: &Refusal) {
    tracing::info!(subject = refusal.subject, reason = refusal.reason, "no longer refused: {}", refusal.message);
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::mpsc::channel;

    fn refusal(name: &str) -> Refusal {
        Refusal { subject: format!("Service default/{name}"), reason: "addressConflict", message: "taken".into() }
    }

    #[test]
    fn the_source_is_told_once_and_again_when_it_comes_back() {
        let (source, mut told) = channel(8);
        let mut refused = Refused::new(source);
        let mut heard = |refused: &mut Refused, now: &[Refusal]| {
            refused.tell(now.to_vec());
            std::iter::from_fn(|| told.try_recv().ok()).collect::<Vec<_>>()
        };
        let (a, b) = (refusal("a"), refusal("b"));
        assert_eq!(heard(&mut refused, std::slice::from_ref(&a)), vec![a.clone()]);
        assert_eq!(heard(&mut refused, &[a.clone(), b.clone()]), vec![b.clone()], "only what is new");
        assert_eq!(heard(&mut refused, &[a.clone(), b.clone()]), []);
        assert_eq!(heard(&mut refused, std::slice::from_ref(&b)), []);
        assert_eq!(heard(&mut refused, &[a.clone(), b]), [a], "it had gone");
    }
}
