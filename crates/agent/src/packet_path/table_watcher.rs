//! Waits for changes of the nftables table. The monitor blocks, so it has a thread of its own.

use anyhow::Context;
use beeline_netfilter::Monitor;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// How long the thread runs on after the watcher was dropped.
const STOP_TIME: Duration = Duration::from_millis(500);

pub struct TableWatcher {
    changes: mpsc::Receiver<()>,
    thread: JoinSet<anyhow::Result<()>>,
}

impl TableWatcher {
    pub fn start(mut monitor: Monitor) -> TableWatcher {
        // One queued notification is enough: each leads to a check of the whole table.
        let (sender, changes) = mpsc::channel(1);
        let mut thread = JoinSet::new();
        thread.spawn_blocking(move || watch(&mut monitor, &sender));
        TableWatcher { changes, thread }
    }

    /// Returns after the table may have changed. An error means that changes are not noticed any more.
    pub async fn next(&mut self) -> anyhow::Result<()> {
        if self.changes.recv().await.is_some() {
            return Ok(());
        }
        let ended = self.thread.join_next().await.context("the monitor of the nftables table ended")?;
        ended.context("the monitor of the nftables table panicked")?
    }
}

fn watch(monitor: &mut Monitor, sender: &mpsc::Sender<()>) -> anyhow::Result<()> {
    while !sender.is_closed() {
        if let Some(change) = monitor.wait(STOP_TIME)? {
            tracing::debug!(?change, "the nftables table changed");
            let _ = sender.try_send(());
        }
    }
    Ok(())
}
