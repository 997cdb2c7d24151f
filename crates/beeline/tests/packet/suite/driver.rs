//! The program that serves packets on node-1 in a test.

use super::manifest::ManifestFile;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code)] // Each target has one of them.
pub enum DriverKind {
    Beeline,
    KubeProxy,
}

impl DriverKind {
    /// How long a change of endpoints may take until UDP flows follow it. kube-proxy collects changes for a second.
    pub fn change_limit(self) -> Duration {
        match self {
            DriverKind::Beeline => Duration::from_secs(2),
            DriverKind::KubeProxy => Duration::from_secs(5),
        }
    }
}

pub trait Driver {
    fn kind(&self) -> DriverKind;

    /// Creates or replaces the objects of a manifest file. Does not wait until they take effect.
    fn apply(&mut self, file: &ManifestFile);

    /// Deletes the objects of a manifest file.
    fn delete(&mut self, file: &ManifestFile);

    /// Kills the program. What it programmed into the kernel stays.
    fn kill(&mut self);

    /// Starts the program again after [`Driver::kill`].
    fn start(&mut self);

    /// The program's log, for the message of a failed test.
    fn log(&mut self) -> String;
}
