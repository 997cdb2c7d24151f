//! Beeline without its agent: program, planner and tables, opened at a cgroup of the bench and filled from facts.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use beeline_datapath::{
    Config, Kernel, Program,
    object::{RECORDS, TABLES},
    program::cleanup,
};
use beeline_model::{
    diff::{Outcome, reconcile},
    fact::Fact,
    planner::{Delta, Planner},
    row::Sizes,
    rules::{EmptyLocal, Rules},
    table::Tables,
};

use super::world::NODE;
use crate::{ground::pins, mapping::memory};

pub struct Beeline {
    pub program: Option<Program>,
    pub kernel: Kernel,
    pub planner: Planner,
    pub tables: Tables,
    pins: PathBuf,
}

impl Beeline {
    /// Room for so many services; nothing is attached yet.
    pub fn open(name: &str, cgroup: &Path, services: u32) -> Result<Self> {
        let pins = pins(name)?;
        let sizes = sizes(services);
        let config = Config { pin_dir: pins.clone(), cgroup: cgroup.into(), sizes, empty_local: EmptyLocal::default() };
        let program = Program::open(config)?;
        let kernel = program.kernel()?;
        let (planner, tables) = (Planner::new(Rules::for_node(NODE)), Tables::new(sizes));
        Ok(Self { program: Some(program), kernel, planner, tables, pins })
    }

    /// Facts to kernel, all of them at once.
    pub fn fill(&mut self, facts: Vec<Fact>) -> Result<()> {
        for fact in facts {
            self.planner.apply(fact);
        }
        let delta = self.planner.take_all();
        self.write(&delta, true).map(drop)
    }

    /// Puts the programs at the hooks.
    pub fn go_live(&mut self) -> Result<()> {
        self.program.as_mut().map_or(Ok(()), |program| Ok(program.go_live()?))
    }

    /// One fact to kernel.
    pub fn change(&mut self, fact: Fact) -> Result<Outcome> {
        self.planner.apply(fact);
        let delta = self.planner.take();
        self.write(&delta, false)
    }

    fn write(&mut self, delta: &Delta, full: bool) -> Result<Outcome> {
        let outcome = reconcile(&mut self.tables, &mut self.kernel, delta, full);
        ensure!(outcome.is_clean(), "not everything could be written: {:?}", outcome.refusals().first());
        Ok(outcome)
    }

    /// Bytes that the kernel holds for all maps.
    pub fn map_memory(&self) -> Result<u64> {
        let Some(program) = &self.program else { return Ok(0) };
        let memories = TABLES.iter().chain(&RECORDS).map(|name| memory(&program.maps().handle(name)?));
        memories.sum()
    }
}

impl Drop for Beeline {
    fn drop(&mut self) {
        // The lock on the pins goes with the program.
        drop(self.program.take());
        if let Err(error) = cleanup(&self.pins) {
            eprintln!("{error}");
        }
    }
}

fn sizes(services: u32) -> Sizes {
    // A few more: the services whose endpoints change.
    Sizes::for_services(services + 1_024)
}
