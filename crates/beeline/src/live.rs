//! The live tables, read from the pins: every tool works without an agent.

use anyhow::{Context, bail};
use beeline_datapath::control::Control;
use beeline_datapath::count::Count;
use beeline_datapath::kernel::Kernel;
use beeline_datapath::object::{MapSet, RECORDS, TABLES};
use beeline_datapath::pin::{Meta, PinDir};
use beeline_datapath::wire;
use beeline_model::row::{NameKind, OwnerId, Rows};
use beeline_model::{Address, PortName};
use std::path::Path;

pub struct Live {
    pub rows: Rows,
    pub meta: Meta,
    pub maps: MapSet,
}

impl Live {
    pub fn open(pin_dir: &Path) -> anyhow::Result<Live> {
        let pins = PinDir::read_only(pin_dir);
        let Some(meta) = pins.meta() else {
            bail!(
                "no tables are pinned at {}: is an agent running, or does it use another --pin-dir? (root is needed to look)",
                pin_dir.display()
            );
        };
        if meta.layout != wire::LAYOUT {
            let (theirs, ours) = (meta.layout, wire::LAYOUT);
            bail!(
                "the tables at {} have layout {theirs}, this beeline reads {ours}: use the agent's own version",
                pin_dir.display()
            );
        }
        let tables = MapSet::pinned(&pins.tables(meta.generation), &TABLES);
        let mut maps =
            tables.with_context(|| format!("tables are missing at {}: restart the agent", pin_dir.display()))?;
        maps.extend(MapSet::pinned(&pins.records(), &RECORDS).context("the records are missing: restart the agent")?);
        let rows = Kernel::new(&maps)?.rows()?;
        Ok(Live { rows, meta, maps })
    }

    pub fn count(&self) -> anyhow::Result<Count> {
        Ok(Count::new(&self.maps)?)
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

    /// By address and view, whose it is: one cluster's on all ports, also on those that its Service does not have.
    pub fn holders(&self) -> impl Iterator<Item = ((Address, u32), String)> {
        self.rows.frontends.iter().filter_map(|(key, row)| {
            let owner = self.rows.sets.get(row.set)?.owner;
            Some(((key.address, key.view), self.cluster(owner)?))
        })
    }

    pub fn node_name(&self, id: u32) -> Option<&str> {
        self.rows.names.get(id).filter(|n| n.kind == NameKind::Node).map(|n| n.text.as_str())
    }
}
