//! Test entry points into the decision of the BPF programs, for tests and benchmarks: resolves a dial without a socket.

use crate::mapped::{bytes_of, from_bytes};
use crate::object::{self, LoadConstants, MapSet};
use crate::{Context, Error, Result, abi, wire};
use beeline_model::event::{Action, Reason};
use beeline_model::resolve::Dial;
use beeline_model::row::{FrontendKind, SetId, Sizes};
use beeline_model::{Address, Protocol};
use libbpf_rs::{Object, ProgramInput};
use std::ops::Range;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq)]
pub struct TestVerdict {
    pub action: Action,
    pub reason: Reason,
    pub kind: Option<FrontendKind>,
    pub set: SetId,
    pub backend: u32,
    pub chosen: Option<(Address, u16)>,
    pub affinity: bool,
    /// Owner of the set whose limit the dial exceeded; 0 means that no limit was exceeded.
    pub limited: u32,
}

/// How often each verdict occurred when one dial was resolved many times.
#[derive(Clone, Copy, Debug, Default)]
pub struct ResolveCounts {
    pub resolved: u64,
    pub refused: u64,
    pub untouched: u64,
    /// Resolved to a port of another service.
    pub wrong: u64,
    pub nanos: u64,
}

/// Results of lookups of cgroup rules.
#[derive(Clone, Copy, Debug, Default)]
pub struct RuleLookups {
    pub found: u64,
    pub missed: u64,
    /// The rule of another cgroup was found.
    pub wrong: u64,
}

pub struct TestResolver {
    object: Object,
}

// SAFETY: a loaded object consists of descriptors and memory that libbpf no longer writes; a run changes neither.
unsafe impl Send for TestResolver {}
unsafe impl Sync for TestResolver {}

impl TestResolver {
    pub fn new(maps: &MapSet, sizes: &Sizes, shards: u32, constants: LoadConstants) -> Result<TestResolver> {
        let mut open = object::open(object::TEST_RESOLVER, "test_resolver")?;
        object::prepare(&mut open, sizes, shards, maps, constants)?;
        Ok(TestResolver { object: object::load(open, "test_resolver")? })
    }

    fn run(&self, name: &str, data: &[u8]) -> Result<Vec<u8>> {
        let program = self.object.progs_mut().find(|p| p.name() == name);
        let program = program
            .ok_or_else(|| Error::Message(format!("there is no program {name} in the BPF object test_resolver")))?;
        let mut out = vec![0; data.len()];
        let input = ProgramInput { data_in: Some(data), data_out: Some(&mut out), ..Default::default() };
        let output = program.test_run(input).context(|| format!("cannot run the BPF program {name}"))?;
        if output.return_value != 0 {
            return Err(Error::Message(format!("the BPF program {name} returned {}", output.return_value as i32)));
        }
        Ok(out)
    }

    /// Resolves one dial. `random` selects the backend; `client` and `now` are used for session affinity.
    pub fn resolve(&self, dial: &Dial, random: u32, client: u64, now: u64) -> Result<TestVerdict> {
        let request = abi::test_dial { dial: wire_dial(dial, random, client, now), ..Default::default() };
        let out = self.run("resolve_one", bytes_of(&request))?;
        let response: abi::test_dial = from_bytes(&out).ok_or_else(short_response)?;
        Ok(read_verdict(&response.verdict))
    }

    /// Resolves the same dial `rounds` times in one run. `expect` is the port of all backends of the service; 0 accepts
    /// any port. With `spread` > 1, each round dials a random one of that many consecutive addresses.
    pub fn resolve_many(&self, dial: &Dial, rounds: u32, expect: u16, spread: u32) -> Result<ResolveCounts> {
        let test = test_loop(dial, rounds, expect);
        self.run_loop(abi::test_loop { spread, ..test })
    }

    /// As `resolve_many`, but some of the dials pause between the lookup of the frontend and the choice of the backend, as
    /// if they were interrupted there. The rows that a dial has found must stay valid until it ends.
    pub fn resolve_many_with_pauses(
        &self,
        dial: &Dial,
        rounds: u32,
        expect: u16,
        pause: Duration,
    ) -> Result<ResolveCounts> {
        let test = test_loop(dial, rounds, expect);
        self.run_loop(abi::test_loop { pause: pause.as_nanos() as u32, ..test })
    }

    /// As `resolve_many`, but with the time of the kernel's clock, which fills the buckets.
    pub fn resolve_many_by_clock(&self, dial: &Dial, rounds: u32, expect: u16) -> Result<ResolveCounts> {
        let test = test_loop(dial, rounds, expect);
        self.run_loop(abi::test_loop { dial: abi::dial { now: 0, ..test.dial }, ..test })
    }

    /// Looks up the rule of a random one of these cgroups `rounds` times. The view of each rule must be the low half of its
    /// cgroup's id. With `plain`, the lookup neither checks the tag nor is it repeated.
    pub fn look_up_rules(&self, ids: Range<u64>, rounds: u32, plain: bool) -> Result<RuleLookups> {
        let count = (ids.end - ids.start) as u32;
        let test = abi::test_rules { first: ids.start, count, rounds, plain: u32::from(plain), ..Default::default() };
        let out = self.run("look_up_rules", bytes_of(&test))?;
        let t: abi::test_rules = from_bytes(&out).ok_or_else(short_response)?;
        Ok(RuleLookups { found: t.found, missed: t.missed, wrong: t.wrong })
    }

    fn run_loop(&self, test: abi::test_loop) -> Result<ResolveCounts> {
        let out = self.run("resolve_loop", bytes_of(&test))?;
        let s: abi::test_loop = from_bytes(&out).ok_or_else(short_response)?;
        Ok(ResolveCounts {
            resolved: s.resolved,
            refused: s.refused,
            untouched: s.untouched,
            wrong: s.wrong,
            nanos: s.elapsed,
        })
    }
}

fn short_response() -> Error {
    Error::Message("the BPF program returned too few bytes".into())
}

fn test_loop(dial: &Dial, rounds: u32, expect: u16) -> abi::test_loop {
    abi::test_loop { dial: wire_dial(dial, 0, 1, 1), rounds, expect: expect.to_be(), ..Default::default() }
}

fn wire_dial(dial: &Dial, random: u32, client: u64, now: u64) -> abi::dial {
    let (prefer, prefer_generation) = dial.prefer.unwrap_or_default();
    let mut cgroup = abi::dial::default().cgroup;
    // A hook passes the ancestor cgroups at the levels of pod cgroups.
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
        // Any share; a hook passes that of the process.
        share: 1,
        cgroup,
        ..Default::default()
    }
}

fn read_verdict(v: &abi::verdict) -> TestVerdict {
    let action = wire::read_action(v.action);
    TestVerdict {
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
