//! The event ring: events of the kernel half in our types. What comes faster than it is taken is dropped and counted: one
//! look at the ring goes on for as long as events come in, and would gather without end.

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

/// Events between two takes: a few megabytes.
const ROOM: usize = 16_384;

pub struct Events {
    ring: RingBuffer<'static>,
    received: Receiver<Event>,
}

/// Where events wait to be taken.
struct Queue {
    waiting: SyncSender<Event>,
    dropped: Arc<AtomicU64>,
}

impl Queue {
    fn new(room: usize, dropped: Arc<AtomicU64>) -> (Queue, Receiver<Event>) {
        let (waiting, received) = sync_channel(room);
        (Queue { waiting, dropped }, received)
    }

    fn put(&self, event: impl FnOnce() -> Event) {
        if self.waiting.try_send(event()).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Events {
    /// `dropped` counts the events that found no room.
    pub fn new(maps: &MapSet, dropped: Arc<AtomicU64>) -> Result<Events> {
        // Leaked once per process: the ring borrows the map for as long as it polls, which is until the end.
        let map: &'static MapHandle = Box::leak(Box::new(maps.handle("events")?));
        let (queue, received) = Queue::new(ROOM, dropped);
        let mut builder = RingBufferBuilder::new();
        let take = move |bytes: &[u8]| {
            if let Some(event) = from_bytes(bytes) {
                queue.put(|| read_event(&event));
            }
            0
        };
        builder.add(map, take).context(|| "cannot read the event ring".into())?;
        Ok(Events { ring: builder.build().context(|| "cannot read the event ring".into())?, received })
    }

    /// Waits at most this long and returns what came.
    pub fn poll(&self, timeout: Duration) -> Vec<Event> {
        let _ = self.ring.poll(timeout);
        self.received.try_iter().collect()
    }
}

/// Programs tell monotonic time; people want the other.
fn wall_clock(monotonic: u64) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
    now.saturating_sub(control::monotonic().saturating_sub(monotonic))
}

fn read_event(e: &abi::event) -> Event {
    let action = wire::read_action(e.action);
    let bytes: Vec<u8> = e.process.iter().map(|c| *c as u8).take_while(|c| *c != 0).collect();
    Event {
        time: wall_clock(e.time),
        cgroup: e.cgroup,
        netns: e.netns,
        pid: e.pid,
        process: String::from_utf8_lossy(&bytes).into_owned(),
        owner: e.owner,
        hook: if u32::from(e.hook) == abi::hook::HOOK_SEND.0 { Hook::Send } else { Hook::Connect },
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
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_finds_no_room_is_dropped_and_counted() {
        let dropped = Arc::new(AtomicU64::new(0));
        let (queue, received) = Queue::new(2, dropped.clone());
        let put = |pid| queue.put(|| Event { pid, ..read_event(&abi::event::default()) });
        (1..=5).for_each(put);
        let pids = |received: &Receiver<Event>| received.try_iter().map(|event| event.pid).collect::<Vec<_>>();
        assert_eq!((pids(&received), dropped.load(Ordering::Relaxed)), (vec![1, 2], 3));
        put(6);
        assert_eq!((pids(&received), dropped.load(Ordering::Relaxed)), (vec![6], 3), "there is room again");
    }
}
