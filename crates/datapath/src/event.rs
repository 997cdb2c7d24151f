//! Reads events from the ring buffer of the BPF programs. Events that arrive faster than they are consumed are dropped and
//! counted: one poll of the ring runs for as long as new events arrive, so an unbounded queue could grow without limit.

use crate::mapped::from_bytes;
use crate::object::MapSet;
use crate::{Context, Result, abi, control, wire};
use beeline_model::Protocol;
use beeline_model::event::{Action, Event, Hook};
use libbpf_rs::{MapHandle, RingBuffer, RingBufferBuilder};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Capacity of the queue between two polls, in events: a few megabytes.
const CAPACITY: usize = 16_384;

pub struct EventReader {
    ring: RingBuffer<'static>,
    receiver: Receiver<Event>,
}

/// Bounded queue between the ring buffer and its consumer.
struct Queue {
    sender: SyncSender<Event>,
    dropped: Arc<AtomicU64>,
}

impl Queue {
    fn new(capacity: usize, dropped: Arc<AtomicU64>) -> (Queue, Receiver<Event>) {
        let (sender, receiver) = sync_channel(capacity);
        (Queue { sender, dropped }, receiver)
    }

    fn push(&self, event: impl FnOnce() -> Event) {
        if self.sender.try_send(event()).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl EventReader {
    /// `dropped` counts the events that are dropped because the queue is full.
    pub fn new(maps: &MapSet, dropped: Arc<AtomicU64>) -> Result<EventReader> {
        // Leaked once per process: the ring borrows the map until the process ends.
        let map: &'static MapHandle = Box::leak(Box::new(maps.handle("events")?));
        let (queue, receiver) = Queue::new(CAPACITY, dropped);
        let mut builder = RingBufferBuilder::new();
        let on_event = move |bytes: &[u8]| {
            if let Some(event) = from_bytes(bytes) {
                queue.push(|| read_event(&event));
            }
            0
        };
        builder.add(map, on_event).context(|| "cannot open the event ring buffer".into())?;
        Ok(EventReader { ring: builder.build().context(|| "cannot open the event ring buffer".into())?, receiver })
    }

    /// Waits at most `timeout` and returns the events that arrived.
    pub fn poll(&self, timeout: Duration) -> Vec<Event> {
        let _ = self.ring.poll(timeout);
        self.receiver.try_iter().collect()
    }
}

/// Converts the monotonic time of a program to nanoseconds since the Unix epoch.
fn wall_clock(monotonic: u64) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
    now.saturating_sub(control::monotonic().saturating_sub(monotonic))
}

fn read_event(e: &abi::event) -> Event {
    let action = wire::read_action(e.action);
    let hook = match abi::hook(u32::from(e.hook)) {
        abi::hook::HOOK_SEND => Hook::Send,
        abi::hook::HOOK_PACKET => Hook::Packet,
        _ => Hook::Connect,
    };
    let bytes: Vec<u8> = e.process.iter().map(|c| *c as u8).take_while(|c| *c != 0).collect();
    Event {
        time: wall_clock(e.time),
        cgroup: e.cgroup,
        netns: e.netns,
        pid: e.pid,
        process: String::from_utf8_lossy(&bytes).into_owned(),
        owner: e.owner,
        hook,
        protocol: Protocol::from_number(e.protocol),
        dialled: wire::read_address(&e.dialled),
        dialled_port: u16::from_be(e.dialled_port),
        chosen: (action == Action::Resolved).then(|| (wire::read_address(&e.chosen), u16::from_be(e.chosen_port))),
        kind: wire::read_kind(e.kind),
        rule: wire::read_rule(e.rule),
        action,
        reason: wire::read_reason(e.reason),
        affinity: e.affinity != 0,
        limited: e.limited,
        view: e.view,
        source: (hook == Hook::Packet).then(|| (wire::read_address(&e.source), u16::from_be(e.source_port))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_beyond_the_capacity_are_dropped_and_counted() {
        let dropped = Arc::new(AtomicU64::new(0));
        let (queue, receiver) = Queue::new(2, dropped.clone());
        let push = |pid| queue.push(|| Event { pid, ..read_event(&abi::event::default()) });
        (1..=5).for_each(push);
        let pids = |receiver: &Receiver<Event>| receiver.try_iter().map(|event| event.pid).collect::<Vec<_>>();
        assert_eq!((pids(&receiver), dropped.load(Ordering::Relaxed)), (vec![1, 2], 3));
        push(6);
        assert_eq!((pids(&receiver), dropped.load(Ordering::Relaxed)), (vec![6], 3), "the queue accepts events again");
    }
}
