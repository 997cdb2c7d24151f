//! A door into the kernel's decision, for tests and benches: ask it without a socket.

use crate::mapped::{bytes_of, from_bytes};
use crate::object::{self, Knobs, MapSet};
use crate::{Context, Error, Result, abi, wire};
use beeline_model::event::{Action, Reason};
use beeline_model::resolve::Dial;
use beeline_model::row::{Kind, SetId, Sizes};
use beeline_model::{Address, Protocol};
use libbpf_rs::{Object, ProgramInput};
use std::time::Duration;

#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    pub action: Action,
    pub reason: Reason,
    pub kind: Option<Kind>,
    pub set: SetId,
    pub backend: u32,
    pub chosen: Option<(Address, u16)>,
    pub affinity: bool,
    /// Owner of the set whose limit it met; 0: of none.
    pub limited: u32,
}

/// What came of the same dial, made many times while tables changed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Toll {
    pub resolved: u64,
    pub refused: u64,
    pub untouched: u64,
    /// Reached a port that belongs to another service.
    pub wrong: u64,
    pub nanos: u64,
}

pub struct Door {
    object: Object,
}

// SAFETY: a loaded object is descriptors and memory that libbpf no longer writes; a run touches neither.
unsafe impl Send for Door {}
unsafe impl Sync for Door {}

impl Door {
    pub fn new(maps: &MapSet, sizes: &Sizes, shards: u32, knobs: Knobs) -> Result<Door> {
        let mut open = object::open(object::DOOR, "door")?;
        object::prepare(&mut open, sizes, shards, maps, knobs)?;
        Ok(Door { object: object::load(open, "door")? })
    }

    fn run(&self, name: &str, data: &[u8]) -> Result<Vec<u8>> {
        let program = self.object.progs_mut().find(|p| p.name() == name);
        let program = program.ok_or_else(|| Error::Said(format!("there is no program {name}")))?;
        let mut out = vec![0; data.len()];
        let input = ProgramInput { data_in: Some(data), data_out: Some(&mut out), ..Default::default() };
        let output = program.test_run(input).context(|| format!("cannot run {name}"))?;
        if output.return_value != 0 {
            return Err(Error::Said(format!("{name} answered {}", output.return_value as i32)));
        }
        Ok(out)
    }

    /// One dial; `random` chooses among the backends, `client` and `now` are for affinity.
    pub fn ask(&self, dial: &Dial, random: u32, client: u64, now: u64) -> Result<Answer> {
        let question = abi::question { dial: wire_dial(dial, random, client, now), ..Default::default() };
        let out = self.run("door", bytes_of(&question))?;
        let answer: abi::question = from_bytes(&out).ok_or_else(|| Error::Said("a short answer".into()))?;
        Ok(read_verdict(&answer.verdict))
    }

    /// The same dial `rounds` times in one go; `expect`: the port that every backend of this service has (0: any).
    /// `spread` > 1 dials a random one of that many addresses counted up from the dial's.
    pub fn besiege(&self, dial: &Dial, rounds: u32, expect: u16, spread: u32) -> Result<Toll> {
        let siege = siege(dial, rounds, expect);
        self.run_siege(abi::siege { spread, ..siege })
    }

    /// Some of the dials wait this long between their two steps, where any dial may be interrupted: what they found must
    /// hold for as long as they run.
    pub fn besiege_slowly(&self, dial: &Dial, rounds: u32, expect: u16, linger: Duration) -> Result<Toll> {
        let siege = siege(dial, rounds, expect);
        self.run_siege(abi::siege { linger: linger.as_nanos() as u32, ..siege })
    }

    /// As `besiege`, by the kernel's clock, which buckets fill by.
    pub fn besiege_in_time(&self, dial: &Dial, rounds: u32, expect: u16) -> Result<Toll> {
        let siege = siege(dial, rounds, expect);
        self.run_siege(abi::siege { dial: abi::dial { now: 0, ..siege.dial }, ..siege })
    }

    fn run_siege(&self, siege: abi::siege) -> Result<Toll> {
        let out = self.run("besiege", bytes_of(&siege))?;
        let s: abi::siege = from_bytes(&out).ok_or_else(|| Error::Said("a short answer".into()))?;
        Ok(Toll { resolved: s.resolved, refused: s.refused, untouched: s.untouched, wrong: s.wrong, nanos: s.took })
    }
}

fn siege(dial: &Dial, rounds: u32, expect: u16) -> abi::siege {
    abi::siege { dial: wire_dial(dial, 0, 1, 1), rounds, expect: expect.to_be(), ..Default::default() }
}

fn wire_dial(dial: &Dial, random: u32, client: u64, now: u64) -> abi::dial {
    let (prefer, prefer_generation) = dial.prefer.unwrap_or_default();
    let mut cgroup = abi::dial::default().cgroup;
    // Those at the levels at which pods stand, which is what a hook gathers.
    cgroup.iter_mut().zip(&dial.cgroups).for_each(|(to, id)| *to = *id);
    abi::dial {
        address: wire::address(dial.address),
        source: dial.source.map(wire::address).unwrap_or_default(),
        client,
        now,
        view: dial.view,
        random,
        prefer,
        prefer_generation,
        port: dial.port.to_be(),
        protocol: Protocol::number(dial.protocol),
        source_known: u8::from(dial.source.is_some()),
        host: u8::from(dial.host),
        cgroup,
        ..Default::default()
    }
}

fn read_verdict(v: &abi::verdict) -> Answer {
    let action = wire::read_action(v.action);
    Answer {
        action,
        reason: wire::read_reason(v.reason),
        kind: wire::read_kind(v.kind),
        set: v.set,
        backend: v.backend,
        chosen: (action == Action::Resolved).then(|| (wire::read_address(&v.address), u16::from_be(v.port))),
        affinity: v.affinity != 0,
        limited: v.limited,
    }
}
