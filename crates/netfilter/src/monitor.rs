//! Watches one nftables table for changes by anyone, this process included.
//!
//! The kernel sends a notification for every object of a transaction, and one for the end of the transaction, which
//! names the thread that sent it. A change is reported at that end. Lost notifications count as a change.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    time::{Duration, Instant},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{
    error::{Error, Result},
    message::{NetlinkMessage, kind},
    socket::NetlinkSocket,
    table::request::{FAMILY, SUBSYSTEM, TABLE_NAME},
};

const GROUPS: u32 = 1 << (libc::NFNLGRP_NFTABLES - 1);
const NEW_GENERATION: u16 = kind(SUBSYSTEM, libc::NFT_MSG_NEWGEN);
const GENERATION_THREAD: u16 = 2; // NFTA_GEN_PROC_PID
const GENERATION_COMMAND: u16 = 3; // NFTA_GEN_PROC_NAME

/// The table may have been changed or removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TableChange {
    /// A transaction changed the table. The id of the thread that sent it is that of the initial pid namespace; its
    /// command is as in `/proc/<id>/comm`.
    Changed { thread_id: u32, command: String },
    /// Notifications were lost, because there were more than the socket could store.
    Unknown,
}

/// Reports changes of one table from the time when it was opened.
///
/// It blocks, so it is used on a thread of its own: tokio's `AsyncFd` can be created only by `unsafe` code.
#[derive(Debug)]
pub struct Monitor {
    table: String,
    socket: NetlinkSocket,
    /// A notification of the table was read, but not yet the end of its transaction.
    is_pending: bool,
}

impl Monitor {
    /// Subscribes to changes in the network namespace of this thread. Open the monitor before the first
    /// `Table::ensure`, so that no change is missed between the two.
    pub fn open(table: &str) -> Result<Self> {
        Ok(Monitor { table: table.to_owned(), socket: NetlinkSocket::open(GROUPS)?, is_pending: false })
    }

    /// Reads queued notifications up to the next change of the table. `None` if there is no change in the queue.
    pub fn read(&mut self) -> Result<Option<TableChange>> {
        loop {
            let messages = match self.socket.notifications() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if is_loss(&error) => return Ok(Some(TableChange::Unknown)),
                other => other.map_err(|source| Error::Socket { action: "read nftables notifications", source })?,
            };
            let mut change = None;
            for message in messages {
                if message.kind == NEW_GENERATION {
                    change = std::mem::take(&mut self.is_pending).then(|| changed(message)).or(change);
                } else {
                    self.is_pending |= is_of_table(message, &self.table);
                }
            }
            if change.is_some() {
                return Ok(change);
            }
        }
    }

    /// Blocks until the table changes or the time has passed.
    pub fn wait(&mut self, timeout: Duration) -> Result<Option<TableChange>> {
        let end = Instant::now() + timeout;
        loop {
            let change = self.read()?;
            let left = end.saturating_duration_since(Instant::now());
            if change.is_some() || left.is_zero() {
                return Ok(change);
            }
            let limit = Timespec::try_from(left).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
            match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&limit)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => {
                    return Err(Error::Socket { action: "wait for nftables notifications", source: errno.into() });
                }
            }
        }
    }
}

impl AsFd for Monitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The queue was full, or a datagram was longer than the buffer.
fn is_loss(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::EMSGSIZE))
}

/// The attribute with the name of the table has the same number in the messages of all objects.
fn is_of_table(message: NetlinkMessage<'_>, table: &str) -> bool {
    message.kind >> 8 == SUBSYSTEM as u16
        && message.family() == FAMILY
        && message.attributes().text(TABLE_NAME) == Some(table)
}

fn changed(message: NetlinkMessage<'_>) -> TableChange {
    let attributes = message.attributes();
    let command = attributes.text(GENERATION_COMMAND).unwrap_or_default().to_owned();
    TableChange::Changed { thread_id: attributes.u32(GENERATION_THREAD).unwrap_or(0), command }
}
