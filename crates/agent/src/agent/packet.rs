//! The part of the packet path that follows the tables.

use super::Agent;
use crate::packet_path::udp_flows::UdpFlowReporter;

impl Agent {
    pub fn set_udp_flow_reporter(&mut self, reporter: UdpFlowReporter) {
        self.udp_flows = Some(reporter);
    }

    /// Called after every write of the tables.
    pub(super) fn update_packet_path(&mut self) -> anyhow::Result<()> {
        self.udp_backends.update(&mut self.reconciler);
        match &self.udp_flows {
            Some(flows) => flows.report(&mut self.reconciler),
            None => drop(self.reconciler.kernel_mut().take_removed_udp_frontends()),
        }
        if let Some(sources) = &mut self.packet_sources {
            sources.update(&self.reconciler, &self.control)?;
        }
        Ok(())
    }
}
