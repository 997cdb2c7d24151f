//! Attachment by a clsact qdisc, on kernels without tcx (before Linux 6.6). A filter has no owner, so its priority and
//! handle identify it.

use crate::{Context, Result};
use libbpf_rs::{ProgramMut, TC_INGRESS, TcHookBuilder};
use std::os::fd::{AsFd, BorrowedFd};

/// Any number, the same for all agents.
const HANDLE: u32 = 0xbee;

/// Whether this kernel has no tcx.
pub fn is_required() -> bool {
    let release = rustix::system::uname();
    version_of(&release.release().to_string_lossy()).is_some_and(|version| version < (6, 6))
}

fn version_of(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((parts.next()?.ok()?, parts.next()?.ok()?))
}

fn builder(fd: BorrowedFd<'_>, index: u32, priority: u32) -> TcHookBuilder<'_> {
    let mut builder = TcHookBuilder::new(fd);
    builder.ifindex(index as i32).replace(true).handle(HANDLE).priority(priority);
    builder
}

/// Replaces the filter of an earlier agent.
pub fn attach(program: &ProgramMut<'_>, index: u32, priority: u32) -> Result<()> {
    let mut hook = builder(program.as_fd(), index, priority).hook(TC_INGRESS);
    let what =
        |step: &str| format!("cannot {step} at device {index}: CAP_NET_ADMIN and the module sch_ingress are required");
    // Succeeds if the qdisc exists.
    hook.create().context(|| what("create a clsact qdisc"))?;
    hook.attach().context(|| what("attach the packet program"))?;
    Ok(())
}

pub fn is_attached(index: u32, priority: u32) -> bool {
    with_hook(index, priority, |hook| hook.query().is_ok())
}

/// Removes the filter. The qdisc stays, because other programs may use it. Returns whether there was a filter.
pub fn detach(index: u32, priority: u32) -> bool {
    with_hook(index, priority, |hook| hook.detach().is_ok())
}

/// Queries and detachments need no program, but the library asks for a descriptor.
fn with_hook(index: u32, priority: u32, run: impl FnOnce(&mut libbpf_rs::TcHook) -> bool) -> bool {
    let Ok(file) = std::fs::File::open("/dev/null") else { return false };
    run(&mut builder(file.as_fd(), index, priority).hook(TC_INGRESS))
}

#[cfg(test)]
mod tests {
    use super::version_of;

    #[test]
    fn kernel_releases_are_parsed() {
        assert_eq!(version_of("6.1.0-55-cloud-amd64"), Some((6, 1)));
        assert_eq!(version_of("6.18.2"), Some((6, 18)));
        assert_eq!(version_of("7.2-rc1"), Some((7, 2)));
        assert_eq!(version_of("unknown"), None);
    }
}
