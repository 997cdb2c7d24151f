//! Beeline without its agent: BPF programs, planner and maps, attached to a cgroup of the bench and filled from
//! objects.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use beeline_datapath::{
    Config, KernelMaps, Program,
    object::{RECORDS, TABLES},
    program::cleanup,
};
use beeline_model::{
    change::Change,
    diff::{ReconcileOutcome, reconcile},
    planner::{Delta, Planner},
    row::Sizes,
    rules::{NoLocalEndpointAction, Rules},
    table::Tables,
};

use super::objects::NODE;
use crate::{isolation::pin_dir, mapping::memory};

pub struct Beeline {
    pub program: Option<Program>,
    pub kernel: KernelMaps,
    pub planner: Planner,
    pub tables: Tables,
    pins: PathBuf,
}

impl Beeline {
    /// Opens maps for this many Services. Nothing is attached yet.
    pub fn open(name: &str, cgroup: &Path, services: u32) -> Result<Self> {
        let pins = pin_dir(name)?;
        let sizes = sizes(services);
        let config = Config {
            pin_dir: pins.clone(),
            cgroup: cgroup.into(),
            sizes,
            no_local_endpoint_action: NoLocalEndpointAction::default(),
            skip_rule_check: false,
        };
        let program = Program::open(config)?;
        let kernel = program.kernel()?;
        let (planner, tables) = (Planner::new(Rules::for_node(NODE)), Tables::new(sizes));
        Ok(Self { program: Some(program), kernel, planner, tables, pins })
    }

    /// Applies all changes and writes the maps once.
    pub fn fill(&mut self, changes: Vec<Change>) -> Result<()> {
        for change in changes {
            self.planner.apply(change);
        }
        let delta = self.planner.take_full_delta();
        self.write(&delta, true).map(drop)
    }

    /// Attaches the programs to their hooks.
    pub fn attach(&mut self) -> Result<()> {
        self.program.as_mut().map_or(Ok(()), |program| Ok(program.attach_hooks()?))
    }

    /// Applies one change and writes the maps.
    pub fn change(&mut self, change: Change) -> Result<ReconcileOutcome> {
        self.planner.apply(change);
        let delta = self.planner.take_delta();
        self.write(&delta, false)
    }

    fn write(&mut self, delta: &Delta, full: bool) -> Result<ReconcileOutcome> {
        let outcome = reconcile(&mut self.tables, &mut self.kernel, delta, full);
        ensure!(outcome.is_clean(), "not all rows could be written: {:?}", outcome.refusals().first());
        Ok(outcome)
    }

    /// Memory of all maps in bytes.
    pub fn map_memory(&self) -> Result<u64> {
        let Some(program) = &self.program else { return Ok(0) };
        let memories = TABLES.iter().chain(&RECORDS).map(|name| memory(&program.maps().handle(name)?));
        memories.sum()
    }
}

impl Drop for Beeline {
    fn drop(&mut self) {
        // Dropping the program releases the lock on the pin directory.
        drop(self.program.take());
        if let Err(error) = cleanup(&self.pins) {
            eprintln!("{error}");
        }
    }
}

fn sizes(services: u32) -> Sizes {
    // Some more, for the Services whose endpoints change.
    Sizes::for_services(services + 1_024)
}
