//! Conntrack entries of one network namespace, by ctnetlink: list, delete, count.
//!
//! The kernel gives no consistent list: entries come and go while it is read, and if the hash table is resized
//! meanwhile, an entry may be missing or appear twice. Callers that must not miss an entry list again later.

mod entry;

pub use entry::{ConntrackEntry, ConntrackStatus, FlowTuple, IpProtocol};

use crate::{
    attribute::AttributeWriter,
    error::{Error, Result},
    message::{NetlinkRequest, kind},
    socket::NetlinkSocket,
};

const SUBSYSTEM: i32 = libc::NFNL_SUBSYS_CTNETLINK;
const GET: i32 = 1; // IPCTNL_MSG_CT_GET
const DELETE: i32 = 2; // IPCTNL_MSG_CT_DELETE
const GET_STATISTICS: i32 = 5; // IPCTNL_MSG_CT_GET_STATS
const STATISTICS_ENTRIES: u16 = 1; // CTA_STATS_GLOBAL_ENTRIES
const STATISTICS_MAX: u16 = 2; // CTA_STATS_GLOBAL_MAX_ENTRIES
const FILTER: u16 = 25 | 0x8000; // CTA_FILTER; the kernel requires NLA_F_NESTED here
const FILTER_ORIGINAL: u16 = 1; // CTA_FILTER_ORIG_FLAGS
const FILTER_PROTOCOL: u32 = 1 << 3; // CTA_FILTER_F_CTA_PROTO_NUM

const LIST_ENTRIES: &str = "list conntrack entries";
const DELETE_ENTRY: &str = "delete a conntrack entry";
const COUNT_ENTRIES: &str = "count conntrack entries";

/// How full the conntrack table is. Packets of new connections are dropped when it is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConntrackUsage {
    /// Entries of this network namespace.
    pub entries: u32,
    /// The largest number of entries of one network namespace.
    pub max: u32,
}

/// A connection to the conntrack table of one network namespace.
#[derive(Debug)]
pub struct Conntrack {
    socket: NetlinkSocket,
}

impl Conntrack {
    /// Opens a socket in the network namespace of this thread.
    pub fn open() -> Result<Self> {
        Ok(Conntrack { socket: NetlinkSocket::open(0)? })
    }

    /// Visits all entries of a protocol, IPv4 and IPv6. The kernel filters by protocol, and one buffer of fixed size is
    /// filled again and again, so that a table with a million TCP entries costs little when UDP is listed.
    pub fn for_each(&mut self, protocol: IpProtocol, mut visit: impl FnMut(ConntrackEntry)) -> Result<()> {
        // The kernel filters by protocol only within one family.
        for family in [libc::AF_INET, libc::AF_INET6] {
            let request = request(LIST_ENTRIES, GET, family, filter(protocol));
            self.socket.dump(&request, |message| {
                ConntrackEntry::parse(message.attributes()).into_iter().for_each(&mut visit);
            })?;
        }
        Ok(())
    }

    /// The entries of a protocol for which `select` returns true.
    pub fn list(
        &mut self,
        protocol: IpProtocol,
        mut select: impl FnMut(&ConntrackEntry) -> bool,
    ) -> Result<Vec<ConntrackEntry>> {
        let mut entries = Vec::new();
        self.for_each(protocol, |entry| entries.extend(select(&entry).then_some(entry)))?;
        Ok(entries)
    }

    /// Deletes this entry. Returns false if it no longer exists. The next packet of the flow creates a new entry.
    ///
    /// If the flow got a new entry after it was listed, the new one may be deleted: the request contains the id of the
    /// entry, but the kernel derives it from the address in memory, which it may use again.
    pub fn delete(&mut self, entry: &ConntrackEntry) -> Result<bool> {
        let request = request(DELETE_ENTRY, DELETE, entry.family(), entry.identify());
        match self.socket.request(&request, |_| ()) {
            Err(error) if error.errno_of(DELETE_ENTRY) == Some(libc::ENOENT) => Ok(false),
            other => other.map(|()| true),
        }
    }

    pub fn usage(&mut self) -> Result<ConntrackUsage> {
        let request = request(COUNT_ENTRIES, GET_STATISTICS, libc::AF_UNSPEC, AttributeWriter::new());
        let mut usage = None;
        self.socket.request(&request, |message| {
            let attributes = message.attributes();
            let values = attributes.u32(STATISTICS_ENTRIES).zip(attributes.u32(STATISTICS_MAX));
            usage = usage.or(values.map(|(entries, max)| ConntrackUsage { entries, max }));
        })?;
        usage.ok_or(Error::Protocol { action: COUNT_ENTRIES })
    }
}

fn request(action: &'static str, message: i32, family: i32, attributes: AttributeWriter) -> NetlinkRequest {
    let kind = kind(SUBSYSTEM, message);
    NetlinkRequest { action, kind, flags: 0, family: family as u8, resource: 0, attributes }
}

/// Entries whose original tuple has this protocol. The flags of the filter are in host byte order.
fn filter(protocol: IpProtocol) -> AttributeWriter {
    let flags = AttributeWriter::new().bytes(FILTER_ORIGINAL, &FILTER_PROTOCOL.to_ne_bytes());
    entry::protocol_tuple(protocol).nested(FILTER, flags)
}
