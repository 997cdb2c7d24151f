//! The tables in the kernel, read from the pinned maps. They can be read without an agent.

use crate::args::AgentPaths;
use crate::options::PIN_DIR;
use anyhow::{Context, bail};
use beeline_api::{AgentClient, AgentStatus};
use beeline_datapath::control::Control;
use beeline_datapath::counter::CounterMaps;
use beeline_datapath::kernel::KernelMaps;
use beeline_datapath::object::{MapSet, RECORDS, TABLES};
use beeline_datapath::pin::{PinDir, TableMeta};
use beeline_datapath::wire;
use beeline_model::row::{NameKind, OwnerId, Rows, SetRow};
use beeline_model::{Address, PortName};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

pub struct LiveTables {
    pub rows: Rows,
    pub meta: TableMeta,
    pub maps: MapSet,
}

/// The directory of the option, else that of the running agent, else the default. An agent in a container may name a
/// directory that does not exist here.
pub fn pin_dir(paths: &AgentPaths, status: Option<&AgentStatus>) -> PathBuf {
    let reported = status.map(|status| PathBuf::from(&status.kernel.pin_dir)).filter(|dir| dir.is_dir());
    paths.pin_dir.clone().or(reported).unwrap_or_else(|| PIN_DIR.into())
}

impl LiveTables {
    /// The tables of the agent at these paths.
    pub fn of_agent(paths: &AgentPaths) -> anyhow::Result<LiveTables> {
        let status = if paths.pin_dir.is_none() { AgentClient::new(&paths.socket).status().ok() } else { None };
        LiveTables::open(&pin_dir(paths, status.as_ref()))
    }

    pub fn open(pin_dir: &Path) -> anyhow::Result<LiveTables> {
        let pins = PinDir::read_only(pin_dir);
        let Some(meta) = pins.meta() else { bail!(missing_tables(pin_dir)) };
        if meta.layout != wire::LAYOUT {
            bail!(
                "the tables at {} have layout {}, this version of beeline reads layout {}: use the agent's version",
                pin_dir.display(),
                meta.layout,
                wire::LAYOUT
            );
        }
        let tables = MapSet::open_pinned(&pins.tables(meta.generation), &TABLES);
        let mut maps =
            tables.with_context(|| format!("tables are missing at {}: restart the agent", pin_dir.display()))?;
        maps.extend(MapSet::open_existing_pins(&pins.records(), &RECORDS));
        let rows = KernelMaps::new(&maps)?.rows()?;
        Ok(LiveTables { rows, meta, maps })
    }

    pub fn counters(&self) -> anyhow::Result<CounterMaps> {
        Ok(CounterMaps::new(&self.maps)?)
    }

    pub fn control(&self) -> anyhow::Result<Control> {
        Ok(Control::new(&self.maps)?)
    }

    pub fn port_name(&self, owner: OwnerId) -> Option<PortName> {
        PortName::from_text(&self.rows.names.get(owner)?.text)
    }

    pub fn owner_text(&self, owner: OwnerId) -> String {
        self.port_name(owner).map_or_else(|| format!("#{owner}"), |n| n.to_string())
    }

    pub fn cluster(&self, owner: OwnerId) -> Option<String> {
        self.port_name(owner).map(|name| name.service.cluster().to_owned())
    }

    /// The cluster that has this address in this view, on all ports, also on those that its Service does not have.
    pub fn cluster_at(&self, address: Address, view: u32) -> Option<String> {
        self.rows.frontends.iter().filter(|(key, _)| (key.address, key.view) == (address, view)).find_map(|(_, row)| {
            let owner = self.rows.sets.get(row.set)?.owner;
            self.cluster(owner)
        })
    }

    pub fn node_name(&self, id: u32) -> Option<&str> {
        self.rows.names.get(id).filter(|n| n.kind == NameKind::Node).map(|n| n.text.as_str())
    }

    /// ADDRESS:PORT of the set's backends, sorted.
    pub fn backends_of(&self, set: &SetRow) -> Vec<String> {
        let mut all: Vec<_> = self.rows.members(set).iter().filter_map(|id| self.rows.backends.get(*id)).collect();
        all.sort_by_key(|b| (b.address, b.port));
        all.iter().map(|b| std::net::SocketAddr::new(b.address.ip(), b.port).to_string()).collect()
    }

    /// A set and the sets that follow it by `next`, in order.
    pub fn chain(&self, set: u32) -> impl Iterator<Item = &SetRow> {
        let sets = &self.rows.sets;
        std::iter::successors(sets.get(set), |set| sets.get(set.header.next)).take(beeline_model::resolve::MAX_CHAIN)
    }
}

fn missing_tables(pin_dir: &Path) -> String {
    let denied = std::fs::metadata(pin_dir.join("meta"))
        .is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
        || !rustix::process::geteuid().is_root();
    match denied {
        true => format!(
            "permission denied: the tables at {} can be read by root only (sudo beeline ...)",
            pin_dir.display()
        ),
        false => format!(
            "no tables are pinned at {}: start an agent, or give its --pin-dir (in a container, mount the host's bpffs)",
            pin_dir.display()
        ),
    }
}
