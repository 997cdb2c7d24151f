//! Takes back what shares are charged for socket records that do not exist any more (bpf/recount.h). The hook of the socket's
//! release does not run for sockets of the kernel itself, nor while it is detached.

use crate::kernel::GracePeriod;
use crate::object::{self, LoadConstants, MapSet};
use crate::reap::{attach_iterator, missing_program};
use crate::{Context, Error, Result};
use beeline_model::row::Sizes;
use libbpf_rs::{Iter, Link, Object, ProgramInput};
use std::io::Read;

/// The programs that iterate over the records of a map.
const COUNTERS: [(&str, &str); 3] =
    [("count_tcp_records", "tcp_record"), ("count_udp_records", "udp_record"), ("count_udp_overflows", "udp_overflow")];

pub const PROGRAMS: [&str; 5] = ["start_recount", COUNTERS[0].0, COUNTERS[1].0, COUNTERS[2].0, "finish_recount"];

/// There must be one for each pin directory: two recounts at the same time disturb each other.
pub struct Recounter {
    object: Object,
    counters: Vec<Link>,
    grace_period: GracePeriod,
}

impl Recounter {
    pub fn new(maps: &MapSet, sizes: &Sizes, shards: u32, constants: LoadConstants) -> Result<Recounter> {
        let mut open = object::open(object::SOCKETS, "sockets")?;
        object::prepare(&mut open, sizes, shards, maps, constants)?;
        for mut program in open.progs_mut() {
            let is_used = PROGRAMS.iter().any(|name| program.name() == *name);
            program.set_autoload(is_used);
        }
        let object = object::load(open, "sockets")?;
        let attach = |(program, map): (&str, &str)| attach_iterator(&object, program, &maps.handle(map)?);
        let counters = COUNTERS.into_iter().map(attach).collect::<Result<_>>()?;
        Ok(Recounter { object, counters, grace_period: GracePeriod::new()? })
    }

    /// Returns the number of bytes that were taken back. The cost is proportional to the number of records.
    pub fn run(&self) -> Result<u32> {
        self.run_program("start_recount")?;
        self.grace_period.wait()?;
        self.counters.iter().try_for_each(iterate)?;
        self.run_program("finish_recount")
    }

    fn run_program(&self, name: &str) -> Result<u32> {
        let program = self.object.progs_mut().find(|program| program.name() == name);
        let output = program.ok_or_else(|| missing_program(name))?.test_run(ProgramInput::default());
        Ok(output.context(|| format!("cannot run the BPF program {name}"))?.return_value)
    }
}

/// Runs a program that writes no output for every record. The kernel pauses after a million records and returns EAGAIN. Then
/// records may be skipped, so the recount is given up.
fn iterate(link: &Link) -> Result<()> {
    let mut iter = Iter::new(link).context(|| "cannot start an iteration over the socket records".into())?;
    match iter.read(&mut [0; 8]) {
        Ok(0) => Ok(()),
        Ok(_) => Err(Error::Message("an iterator that counts socket records wrote output".into())),
        Err(error) => Err(error).context(|| "cannot count the socket records".into()),
    }
}
