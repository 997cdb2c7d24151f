//! The event ring: events of the kernel half in our types.

use crate::mapped::from_bytes;
use crate::object::MapSet;
use crate::{Context, Result, abi, control, wire};
use beeline_model::Protocol;
use beeline_model::event::{Action, Event, Hook};
use libbpf_rs::{MapHandle, RingBuffer, RingBufferBuilder};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub struct Events {
    ring: RingBuffer<'static>,
    received: Receiver<Event>,
}

impl Events {
    pub fn new(maps: &MapSet) -> Result<Events> {
        // Leaked once per process: the ring borrows the map for as long as it polls, which is until the end.
        let map: &'static MapHandle = Box::leak(Box::new(maps.handle("events")?));
        let (tx, received) = channel();
        let mut builder = RingBufferBuilder::new();
        let take = move |bytes: &[u8]| {
            if let Some(event) = from_bytes(bytes) {
                let _ = tx.send(read_event(&event));
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
    }
}
