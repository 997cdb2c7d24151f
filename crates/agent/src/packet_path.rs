//! The packet path: keeps the packet program attached to the right devices, and the nftables table that it needs in place.
//! The program, its links and the table outlive the agent.

pub mod device;
mod device_reader;
mod sources;
mod state;
mod table_watcher;
mod udp_backends;
pub mod udp_flows;

pub use sources::{LocalMode, PacketSources};
pub use state::{PacketAttachment, PacketPathState, SharedPacketState};
pub use udp_backends::UdpBackends;

use crate::agent::Agent;
use crate::health::Health;
use crate::settings::AgentSettings;
use anyhow::Context;
use beeline_datapath::packet::{AttachOrder, DeviceTable, PacketProgram, REJECT_MARK};
use beeline_netfilter::sysctl::{ConntrackSettings, SettingOutcome, Sysctls};
use beeline_netfilter::{Ensured, Monitor, Table, TableConfig};
use device::{ChosenDevice, DeviceRules};
use device_reader::DeviceReader;
use ipnet::IpNet;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use table_watcher::TableWatcher;
use tokio::sync::watch;

/// The name of the nftables table, in the family inet.
pub const TABLE: &str = "beeline";
/// How often devices and table are compared with what they should be, without a notification.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// Several changes of devices often come together.
const SETTLE_TIME: Duration = Duration::from_millis(20);

/// The options of the packet path.
#[derive(Clone, Debug, Default)]
pub struct PacketSettings {
    pub devices: DeviceRules,
    pub order: AttachOrder,
    /// The priority of the filter on kernels without tcx.
    pub priority: u32,
    /// `--masquerade-all`.
    pub masquerades_all: bool,
    pub local_mode: LocalMode,
    /// Settings of the kernel's connection tracking.
    pub conntrack: ConntrackSettings,
}

/// Everything that the task uses.
pub struct PacketPath {
    settings: PacketSettings,
    /// The program, or why it could not be loaded.
    program: Result<(PacketProgram, DeviceTable), String>,
    state: Arc<SharedPacketState>,
    health: Arc<Health>,
    /// The ranges of the pods.
    pod_ranges: watch::Receiver<Vec<IpNet>>,
    /// Whether the tables are complete.
    programmed: watch::Receiver<bool>,
}

pub fn table_config() -> TableConfig {
    TableConfig { name: TABLE.into(), reject_mark: REJECT_MARK }
}

impl PacketPath {
    /// `None` if the packet path is off.
    pub fn new(
        agent: &Agent,
        settings: &AgentSettings,
        health: Arc<Health>,
        programmed: watch::Receiver<bool>,
    ) -> Option<PacketPath> {
        let (settings, sources) = (settings.packet_path.clone()?, agent.packet_sources.as_ref()?);
        let program = &agent.reconciler.program;
        // Creating the table makes the kernel load the modules that have the functions of the program. An error is reported
        // when the table is needed.
        let _ = Table::open(table_config()).and_then(|mut table| table.ensure());
        let loaded = program.packet_program(settings.order, settings.priority);
        let loaded = loaded.and_then(|loaded| Ok((loaded, program.packet_devices()?)));
        health.set_packet_path(false);
        Some(PacketPath {
            settings,
            program: loaded.map_err(|error| error.to_string()),
            state: agent.packet_state.clone(),
            health,
            pod_ranges: sources.subscribe(),
            programmed,
        })
    }

    /// Runs until the agent stops. A failure of the packet path does not end the agent: dials of sockets are still served.
    pub async fn run(mut self) -> anyhow::Result<()> {
        let result = self.serve().await;
        if let Err(error) = &result {
            self.report_problem(format!("{error:#}"));
            tracing::error!(error = format!("{error:#}"), "packets from outside are not served; see `beeline doctor`");
        }
        // Another task ends the agent.
        std::future::pending().await
    }

    async fn serve(&mut self) -> anyhow::Result<()> {
        if let Err(error) = &self.program {
            anyhow::bail!("the packet program cannot be used: {error}");
        }
        let mut table_changes = TableWatcher::start(Monitor::open(TABLE)?);
        let mut table = Table::open(table_config())?;
        let mut devices = DeviceReader::open().context("cannot watch the network devices")?;
        self.programmed.wait_for(|programmed| *programmed).await.context("the agent is stopping")?;
        self.apply_settings();
        let mut check = tokio::time::interval_at(tokio::time::Instant::now() + CHECK_INTERVAL, CHECK_INTERVAL);
        loop {
            self.ensure_table(&mut table);
            self.attach(&devices).await;
            tokio::select! {
                changed = devices.changed() => {
                    anyhow::ensure!(changed, "the netlink socket of the network devices was closed");
                    tokio::time::sleep(SETTLE_TIME).await;
                }
                changed = table_changes.next() => changed?,
                changed = self.pod_ranges.changed() => changed.context("the agent is stopping")?,
                _ = check.tick() => {}
            }
        }
    }

    /// Sets what kube-proxy sets, and warns of settings with which packets are lost.
    fn apply_settings(&self) {
        let processors = std::thread::available_parallelism().map_or(1, |number| number.get() as u32);
        for result in Sysctls::default().set_conntrack(&self.settings.conntrack, processors) {
            let (setting, wanted) = (result.setting.path(), result.wanted);
            match result.outcome {
                SettingOutcome::Unchanged => {}
                SettingOutcome::Written => {
                    tracing::info!(setting, wanted, before = result.before, "set a kernel setting")
                }
                SettingOutcome::Failed(error) => {
                    tracing::warn!(setting, wanted, %error, "cannot set a kernel setting; set it on the host");
                }
            }
        }
        for finding in Sysctls::default().findings() {
            tracing::warn!(%finding, "a kernel setting may keep packets from backends; see `beeline doctor`");
        }
    }

    fn ensure_table(&self, table: &mut Table) {
        let (ensured, is_first) = (table.ensure(), !self.state.get().has_table);
        match &ensured {
            Ok(Ensured::Unchanged) => {}
            Ok(Ensured::Created) if is_first => tracing::info!(table = TABLE, "created the nftables table"),
            Ok(repaired) => {
                self.state.update(|state| state.table_repairs += 1);
                tracing::warn!(
                    table = TABLE,
                    ?repaired,
                    "the nftables table was removed or changed externally; created it again; keep other programs from flushing the ruleset"
                );
            }
            Err(error) => {
                tracing::error!(table = TABLE, %error, "cannot create the nftables table; packets from outside are not served");
            }
        }
        self.state.update(|state| state.has_table = ensured.is_ok());
        self.update_health();
    }

    async fn attach(&mut self, reader: &DeviceReader) {
        let devices = match reader.devices().await {
            Ok(devices) => devices,
            Err(error) => {
                tracing::warn!(%error, "cannot read the network devices; the packet program stays where it is");
                return;
            }
        };
        let ranges = self.pod_ranges.borrow_and_update().clone();
        let chosen = device::choose(&devices, &self.settings.devices, &ranges);
        self.attach_to(&chosen);
        self.update_health();
    }

    fn attach_to(&mut self, chosen: &BTreeMap<u32, ChosenDevice>) {
        let Ok((program, table)) = &mut self.program else { return };
        let rows = chosen.iter().map(|(index, chosen)| (*index, chosen.device)).collect();
        if let Err(error) = table.set(&rows) {
            tracing::warn!(%error, "cannot write the devices of the packet path; retrying");
        }
        let wanted: Vec<u32> = chosen.keys().copied().collect();
        let (new, failed) = program.attach_only(&wanted);
        for index in new {
            tracing::info!(device = chosen[&index].name, index, kind = ?program.kind(), "attached the packet program");
        }
        for (index, error) in &failed {
            tracing::warn!(device = chosen[index].name, index, %error, "cannot attach the packet program; retrying");
        }
        let name = |index: u32| chosen.get(&index).map(|chosen| chosen.name.clone());
        let attachment =
            PacketAttachment { kind: program.kind(), devices: program.attached().filter_map(name).collect() };
        let problem = match (attachment.devices.is_empty(), failed.first()) {
            (_, Some((_, error))) => Some(error.to_string()),
            (true, None) => Some("no network device was chosen: set --packet-devices".to_owned()),
            (false, None) => None,
        };
        self.state.update(|state| (state.attachment, state.problem) = (Some(attachment), problem));
    }

    fn report_problem(&self, problem: String) {
        self.state.update(|state| state.problem = Some(problem));
        self.update_health();
    }

    fn update_health(&self) {
        self.health.set_packet_path(self.state.get().is_serving());
    }
}
