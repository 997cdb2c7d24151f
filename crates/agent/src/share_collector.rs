//! Keeps the shares of pods (bpf/share.h) correct: takes back what was charged for socket records that do not exist any
//! more, and removes expired session affinity and the shares of cgroups that are gone.

use beeline_datapath::Program;
use beeline_datapath::recount::Recounter;

pub struct ShareCollector {
    /// `None` if the kernel does not support it.
    recounter: Option<Recounter>,
}

impl ShareCollector {
    pub fn new(program: &Program) -> ShareCollector {
        let recounter = program.recounter();
        if let Err(error) = &recounter {
            tracing::warn!(%error, "cannot count socket records: sockets that close without the hook sock_release stay charged");
        }
        ShareCollector { recounter: recounter.ok() }
    }

    /// `level` is the level of shares. Does nothing before the programs are attached.
    pub fn run(&self, program: &Program, level: u32) {
        if !program.is_attached() {
            return;
        }
        // First, because a share that is charged is not removed.
        self.recount();
        if let Err(error) = program.collect_shares(level) {
            tracing::warn!(%error, "cannot remove expired session affinity; retrying at the next check");
        }
    }

    fn recount(&self) {
        match self.recounter.as_ref().map(Recounter::run) {
            Some(Ok(bytes)) if bytes > 0 => {
                tracing::info!(bytes, "took back what was charged for socket records that do not exist any more");
            }
            Some(Err(error)) => tracing::warn!(%error, "cannot count socket records; retrying at the next check"),
            Some(Ok(_)) | None => {}
        }
    }
}
