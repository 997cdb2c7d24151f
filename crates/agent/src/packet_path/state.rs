//! The state of the packet path: written by its task, read by `status`, the metrics and the health checks.

use beeline_datapath::packet::AttachKind;
use std::sync::Mutex;

/// How the program is attached, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketAttachment {
    pub kind: AttachKind,
    /// The names of the devices.
    pub devices: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PacketPathState {
    /// `None` before the tables are complete, or if the program cannot be used.
    pub attachment: Option<PacketAttachment>,
    /// Whether the nftables table exists.
    pub has_table: bool,
    /// How often the nftables table was missing or changed, and was created again.
    pub table_repairs: u64,
    /// What does not work, and what to do.
    pub problem: Option<String>,
}

impl PacketPathState {
    /// Whether packets from outside are served.
    pub fn is_serving(&self) -> bool {
        let has_devices = self.attachment.as_ref().is_some_and(|attachment| !attachment.devices.is_empty());
        has_devices && self.has_table && self.problem.is_none()
    }
}

/// Shared between the task and the readers.
#[derive(Debug, Default)]
pub struct SharedPacketState(Mutex<PacketPathState>);

impl SharedPacketState {
    pub fn get(&self) -> PacketPathState {
        self.lock().clone()
    }

    pub fn update(&self, change: impl FnOnce(&mut PacketPathState)) {
        change(&mut self.lock());
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, PacketPathState> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
