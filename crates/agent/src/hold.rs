//! The start of a host that stands outside of a cluster. What the kernel holds from before is right, most likely, and serves;
//! written too early, the plan would turn everything round and back again: it does not know yet who else has pods at the
//! same addresses, nor how pods are reached. So the first plan waits for both, and not for long.

use crate::reach::{Asked, News};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// For clusters that say nothing: what is remembered of them has been told by then (`follow`).
const HEAR: Duration = Duration::from_secs(4);
/// For routes, and the first answer of a pod.
const SEE: Duration = Duration::from_millis(2500);

pub enum Hold {
    /// Until every cluster has been heard.
    Hears(Instant),
    /// Until this question has been answered.
    Sees(Instant, Arc<[Asked]>),
    Over,
}

impl Hold {
    pub fn new(now: Instant) -> Hold {
        Hold::Hears(now + HEAR)
    }

    pub fn is_over(&self) -> bool {
        matches!(self, Hold::Over)
    }

    /// `heard`: some cluster has been, or all of them.
    pub fn is_heard(&self, heard: Heard, now: Instant) -> bool {
        match self {
            Hold::Hears(until) => heard == Heard::All || heard == Heard::Some && now >= *until,
            _ => false,
        }
    }

    /// The ways to pods have been asked for.
    pub fn see(&mut self, question: Arc<[Asked]>, now: Instant) {
        *self = Hold::Sees(now + SEE, question);
    }

    pub fn hear_of(&mut self, news: &News) {
        let answers = |question: &Arc<[Asked]>| news.settled && Arc::ptr_eq(&news.asked, question);
        if matches!(self, Hold::Sees(_, question) if answers(question)) {
            *self = Hold::Over;
        }
    }

    pub fn give_up(&mut self, now: Instant) {
        if matches!(self, Hold::Sees(until, _) if now >= *until) {
            *self = Hold::Over;
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    None,
    Some,
    All,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked() -> Arc<[Asked]> {
        Arc::new([])
    }

    #[test]
    fn one_cluster_that_is_silent_is_waited_for_and_not_for_long() {
        let now = Instant::now();
        let hold = Hold::new(now);
        assert!(!hold.is_heard(Heard::None, now + HEAR) && !hold.is_heard(Heard::Some, now));
        assert!(hold.is_heard(Heard::All, now) && hold.is_heard(Heard::Some, now + HEAR));
    }

    #[test]
    fn only_the_answer_to_what_was_asked_counts() {
        let (now, question) = (Instant::now(), asked());
        let mut hold = Hold::new(now);
        hold.hear_of(&News { settled: true, asked: question.clone(), ..News::default() });
        assert!(!hold.is_over(), "nothing was asked");
        hold.see(question.clone(), now);
        hold.hear_of(&News { settled: true, asked: Arc::new([]), ..News::default() });
        hold.hear_of(&News { settled: false, asked: question.clone(), ..News::default() });
        hold.give_up(now);
        assert!(!hold.is_over());
        hold.hear_of(&News { settled: true, asked: question, ..News::default() });
        assert!(hold.is_over());
    }

    #[test]
    fn whoever_does_not_answer_is_not_waited_for_for_ever() {
        let now = Instant::now();
        let mut hold = Hold::new(now);
        hold.see(asked(), now);
        hold.give_up(now + SEE);
        assert!(hold.is_over());
    }
}
