//! Keeps the UDP backends that existing flows of the packet path may use: those in use, and terminating ones that still
//! answer. A flow whose backend is not among them gets another backend with its next packet.
//!
//! The writer of the tables adds a backend before it can be picked. It only reports a backend that went out of use, because
//! the tables do not tell whether it still answers.

use crate::reconciler::Reconciler;
use crate::stale_udp;
use beeline_model::row::BackendRow;

#[derive(Default)]
pub struct UdpBackends {
    /// Backends that get no new flows and still answer. They are checked after every change.
    draining: Vec<BackendRow>,
}

impl UdpBackends {
    /// Backends that were removed while no agent ran.
    pub fn restore(reconciler: &mut Reconciler) -> UdpBackends {
        UdpBackends { draining: reconciler.kernel_mut().udp_backends() }
    }

    /// Called after every write of the tables.
    pub fn update(&mut self, reconciler: &mut Reconciler) {
        self.draining.extend(reconciler.kernel_mut().take_released_udp());
        for row in std::mem::take(&mut self.draining) {
            let at = (row.address, row.port);
            if reconciler.tables.has_backend(row.owner, row.address, row.port) {
                continue;
            }
            let still_serves = stale_udp::serves(&reconciler.tables, &reconciler.planner, row.owner, at);
            if still_serves || reconciler.kernel_mut().remove_udp_backend(&row).is_err() {
                self.draining.push(row);
            }
        }
    }
}
