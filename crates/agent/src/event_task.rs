//! Reads events from the kernel, has the main loop add names, and passes them to the monitors. The cgroups of pods are
//! scanned here if an event comes from an unknown one, so that the main loop does not wait for the scan.

use crate::main_loop::Message;
use crate::pod_cgroup::SCAN_INTERVAL;
use beeline_api::AttributedEvent;
use beeline_datapath::event::EventReader;
use beeline_datapath::pod::{KubeletRoot, kubelet_roots};
use beeline_model::event::Event;
use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};
use tokio::sync::{broadcast, oneshot};

/// How long to wait for an event before checking whether the agent stops.
const POLL_TIMEOUT: Duration = Duration::from_millis(200);

/// Finds out when the cgroups have to be scanned for the identity of processes.
struct IdentityScanner {
    root: PathBuf,
    /// The cgroups of the last scan.
    known: HashSet<u64>,
    scanned: Option<Instant>,
}

impl IdentityScanner {
    fn new(root: PathBuf) -> IdentityScanner {
        IdentityScanner { root, known: HashSet::new(), scanned: None }
    }

    /// Scans if some event comes from an unknown cgroup, at most every `SCAN_INTERVAL`: host processes are in no pod.
    fn scan_for(&mut self, events: &[Event], now: Instant) -> Option<Vec<KubeletRoot>> {
        let is_known = |event: &Event| self.known.contains(&event.cgroup);
        if events.iter().all(is_known) || self.scanned.is_some_and(|at| now < at + SCAN_INTERVAL) {
            return None;
        }
        let roots = kubelet_roots(&self.root);
        let pods = roots.iter().flat_map(|root| &root.pods);
        self.known =
            pods.flat_map(|pod| std::iter::once(pod.id).chain(pod.descendants.iter().map(|(id, _)| *id))).collect();
        self.scanned = Some(now);
        Some(roots)
    }
}

/// Blocks until `stopping` is set. Without a subscriber the kernel reports no events; those that were reported just before the
/// last one left are only removed from the kernel's buffer.
pub fn run(
    reader: &EventReader,
    root: PathBuf,
    main_loop: &Sender<Message>,
    subscribers: &broadcast::Sender<Arc<AttributedEvent>>,
    stopping: &AtomicBool,
) -> anyhow::Result<()> {
    let mut scanner = IdentityScanner::new(root);
    while !stopping.load(Ordering::Relaxed) {
        let events = reader.poll(POLL_TIMEOUT);
        if events.is_empty() || subscribers.receiver_count() == 0 {
            continue;
        }
        let scan = scanner.scan_for(&events, Instant::now());
        let (reply, attributed) = oneshot::channel();
        // Sending and receiving fail only if the agent stops.
        let _ = main_loop.send(Message::Attribute { events, scan, reply });
        for event in attributed.blocking_recv().unwrap_or_default() {
            let _ = subscribers.send(Arc::new(event));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use beeline_model::event::{Action, Hook, Reason};
    use std::os::unix::fs::MetadataExt;

    fn event(cgroup: u64) -> Event {
        let address = beeline_model::Address::from(std::net::IpAddr::from([10, 96, 0, 1]));
        Event {
            time: 1,
            cgroup,
            netns: 1,
            pid: 1,
            process: "curl".into(),
            owner: 0,
            hook: Hook::Connect,
            protocol: None,
            dialled: address,
            dialled_port: 80,
            chosen: None,
            kind: None,
            rule: None,
            action: Action::Untouched,
            reason: Reason::None,
            affinity: false,
            limited: 0,
            view: 0,
            source: None,
        }
    }

    #[test]
    fn cgroups_are_scanned_for_unknown_processes_only_and_not_too_often() {
        let root = tempfile::tempdir().unwrap();
        let pod = root.path().join("kubepods/pod0c9a3a3e-5b1f-4c3d-9a55-6f0e3f1d2b11");
        std::fs::create_dir_all(&pod).unwrap();
        let known = event(pod.metadata().unwrap().ino());
        let mut scanner = IdentityScanner::new(root.path().to_owned());
        let now = Instant::now();
        assert_eq!(scanner.scan_for(std::slice::from_ref(&known), now).unwrap().len(), 1);
        assert_eq!(scanner.scan_for(&[known.clone(), event(1)], now), None, "too soon after the last scan");
        assert_eq!(scanner.scan_for(std::slice::from_ref(&known), now + SCAN_INTERVAL), None, "a known cgroup");
        assert!(scanner.scan_for(&[known, event(1)], now + SCAN_INTERVAL).is_some());
    }
}
