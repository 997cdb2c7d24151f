//! Runs the agent on node-1, with a manifest directory as its source.

use crate::suite::driver::{Driver, DriverKind};
use crate::suite::fixture::PacketFixture;
use crate::suite::manifest::ManifestFile;
use beeline_harness::AgentProcess;
use beeline_harness::packet::{POD_RANGES, PacketNetwork};
use std::sync::{Mutex, PoisonError};

const BEELINE: &str = env!("CARGO_BIN_EXE_beeline");

/// Options of the agent in all packet tests.
fn options(network: &PacketNetwork) -> Vec<String> {
    let node = network.cluster.node();
    [
        ("--packet-path", "on".to_owned()),
        ("--packet-devices", network.devices().join(",")),
        ("--cluster-cidr", POD_RANGES.join(",")),
        ("--node-addresses", format!("{},{}", node.v4, node.v6)),
        ("--max-services", "256".to_owned()),
        // These settings belong to the machine, and not to the network namespace of the test.
        ("--conntrack-max-per-core", "0".to_owned()),
        ("--metrics-bind-address", "off".to_owned()),
        ("--healthz-bind-address", "off".to_owned()),
    ]
    .into_iter()
    .flat_map(|(option, value)| [option.to_owned(), value])
    .collect()
}

struct AgentDriver<'a> {
    agent: AgentProcess,
    network: &'a PacketNetwork,
}

/// Calls `test` with a fixture whose agent serves. The tests run one after the other, because they measure time.
pub fn with_fixture(test: fn(&mut PacketFixture<'_>)) {
    static LOCK: Mutex<()> = Mutex::new(());
    let _alone = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let network = PacketNetwork::new().unwrap();
    let mut driver = AgentDriver { agent: AgentProcess::with_binary(BEELINE).unwrap(), network: &network };
    PacketFixture::nodes(&network).iter().for_each(|node| driver.apply(node));
    driver.start();
    test(&mut PacketFixture::new(&network, &mut driver));
}

impl Driver for AgentDriver<'_> {
    fn kind(&self) -> DriverKind {
        DriverKind::Beeline
    }

    fn apply(&mut self, file: &ManifestFile) {
        self.agent.write(&file.file_name(), &file.text()).unwrap();
    }

    fn delete(&mut self, file: &ManifestFile) {
        self.agent.manifests.remove(&file.file_name()).unwrap();
    }

    fn kill(&mut self) {
        self.agent.kill();
    }

    fn start(&mut self) {
        self.agent.start_with(&self.network.cluster, options(self.network)).unwrap();
    }

    fn log(&mut self) -> String {
        self.agent.running().map(|agent| agent.stderr()).unwrap_or_default()
    }
}
