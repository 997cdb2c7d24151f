//! The main loop's part of the health of redirects: attaches the program that notices refused dials while a
//! LocalRedirectPolicy exists, and forgets backends that no redirect has any more.

use super::RedirectHealth;
use crate::reconciler::Reconciler;
use beeline_datapath::Program;
use beeline_datapath::suspension::{BackendAddress, RefusalReader, RefusalWatcher, SuspensionMap};
use beeline_model::policy::PolicyKind;
use beeline_model::row::{Rows, Rule};
use std::collections::BTreeSet;

pub struct RedirectWatch {
    /// `None` if the kernel does not support it.
    watcher: Option<RefusalWatcher>,
    map: SuspensionMap,
    pub health: RedirectHealth,
}

impl RedirectWatch {
    pub fn new(program: &Program) -> anyhow::Result<RedirectWatch> {
        let watcher = program.refusal_watcher();
        if let Err(error) = &watcher {
            tracing::warn!(%error, "cannot watch for refused dials: redirects follow the status of pods only");
        }
        Ok(RedirectWatch { watcher: watcher.ok(), map: program.suspensions()?, health: RedirectHealth::default() })
    }

    /// For the thread that checks backends; `None` if refused dials cannot be noticed.
    pub fn reader(&self) -> anyhow::Result<Option<RefusalReader>> {
        Ok(self.watcher.as_ref().map(RefusalWatcher::reader).transpose()?)
    }

    /// Called after each sync, and a few times per second.
    pub fn update(&mut self, reconciler: &Reconciler) {
        let planner = &reconciler.planner;
        self.set_attached(planner.policy_owners().any(|owner| owner.policy_kind() == Some(PolicyKind::LocalRedirect)));
        // The tables are only searched while a backend is suspected or suspended.
        if !self.health.is_idle() {
            self.health.retain(&redirect_backends(reconciler.tables.rows()), &self.map);
        }
    }

    fn set_attached(&mut self, attached: bool) {
        let Some(watcher) = self.watcher.as_mut().filter(|watcher| watcher.is_attached() != attached) else { return };
        match watcher.set_attached(attached) {
            Ok(()) if attached => tracing::info!("watching for refused dials of redirects"),
            Ok(()) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot watch for refused dials: redirects follow the status of pods only");
                self.watcher = None;
            }
        }
    }
}

fn redirect_backends(rows: &Rows) -> BTreeSet<BackendAddress> {
    let sets = rows.sets.iter().map(|(_, set)| set).filter(|set| set.rule == Rule::Redirect);
    let backends = sets.flat_map(|set| rows.members(set)).filter_map(|id| rows.backends.get(*id));
    backends.map(|row| (row.address, row.port)).collect()
}
