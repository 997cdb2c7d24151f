//! Destroys stale UDP sockets, which are connected to a backend that is gone. `send()` on a connected socket runs no hook,
//! so the application can only notice a destroyed socket, and dial again. `Reaper` lists the connected sockets of all
//! network namespaces, the caller decides, and `Reaper` destroys, namespace by namespace: by cookie, and only while the
//! socket is still connected to that backend. `SocketRecordReader` lists all socket records for `beeline dump nat`.

use crate::mapped::{bytes_of, from_bytes};
use crate::namespace_opener::NamespaceOpener;
use crate::netns::NamespaceFile;
use crate::object::{self, LoadConstants, MapSet};
use crate::{Context, Error, Result, abi, netns, recount, wire};
use beeline_model::row::{OwnerId, Sizes};
use beeline_model::{Address, Protocol};
use libbpf_rs::{Iter, Link, MapCore, MapFlags, MapHandle, Object};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;

/// Maximum number of passes over the socket records when each of them is interrupted.
const MAX_PASSES: usize = 4;

/// A connected UDP socket whose address was resolved.
#[derive(Clone, Debug)]
pub struct ConnectedSocket {
    pub owner: OwnerId,
    pub dialled: Address,
    pub dialled_port: u16,
    pub chosen: Address,
    pub chosen_port: u16,
    pub epoch: u32,
    raw: abi::socket_entry,
}

impl ConnectedSocket {
    /// Identifies the socket while the host is up.
    pub fn cookie(&self) -> u64 {
        self.raw.cookie
    }
}

pub struct Reaper {
    object: Object,
    list_connected: Link,
    destroy_list: MapHandle,
    /// Whether a BPF program destroys the sockets. False before Linux 6.5, where netlink is used instead.
    exact: bool,
    namespaces: Arc<NamespaceOpener>,
}

impl Reaper {
    pub fn new(
        maps: &MapSet,
        sizes: &Sizes,
        shards: u32,
        constants: LoadConstants,
        namespaces: Arc<NamespaceOpener>,
    ) -> Result<Reaper> {
        let (object, exact) = match load(maps, sizes, shards, constants, true) {
            Ok(object) => (object, true),
            Err(error) => {
                tracing::debug!(%error, "a BPF program cannot destroy sockets on this kernel; using netlink");
                (load(maps, sizes, shards, constants, false)?, false)
            }
        };
        let record = maps.handle("udp_record")?;
        let list_connected = attach_iterator(&object, "list_connected_udp", &record)?;
        let destroy_list = object::maps_of(&object)?.handle("destroy_list")?;
        Ok(Reaper { object, list_connected, destroy_list, exact, namespaces })
    }

    pub fn is_exact(&self) -> bool {
        self.exact
    }

    /// All connected UDP sockets with a record. The cost is proportional to their number.
    pub fn connected_sockets(&self) -> Result<Vec<ConnectedSocket>> {
        Ok(list_entries(&self.list_connected)?.into_iter().map(read_entry).collect())
    }

    /// Destroys these sockets and returns how many were destroyed. Passes are repeated until one destroys none, because
    /// before Linux 6.16 an iterator may skip sockets.
    pub fn destroy(&self, sockets: &[ConnectedSocket]) -> Result<usize> {
        let mut by_namespace: BTreeMap<u32, Vec<&ConnectedSocket>> = BTreeMap::new();
        for socket in sockets {
            by_namespace.entry(socket.raw.netns_inode).or_default().push(socket);
        }
        let namespaces = netns::all();
        let mut destroyed = 0;
        for (inode, sockets) in by_namespace {
            // An error in one namespace (just removed, or not permitted to enter) must not prevent the others.
            match self.destroy_in_namespace(namespaces.get(&u64::from(inode)), &sockets) {
                Ok(count) => destroyed += count,
                Err(error) => tracing::warn!(
                    namespace = inode,
                    %error,
                    "cannot destroy stale UDP sockets in one network namespace; check CAP_SYS_ADMIN (`enterNamespaces`)"
                ),
            }
        }
        Ok(destroyed)
    }

    fn destroy_in_namespace(&self, path: Option<&PathBuf>, sockets: &[&ConnectedSocket]) -> Result<usize> {
        let by_path = path.and_then(|path| netns::open(path).ok());
        let namespace = by_path.or_else(|| sockets.iter().find_map(|s| netns::of_socket(s.raw.inode)));
        let Some(namespace) = namespace else { return Ok(0) };
        if !self.exact {
            let netlink = self.namespaces.open(namespace.as_fd(), NamespaceFile::SockDiag)?;
            return Ok(sockets.iter().filter(|s| crate::sock_diag::destroy(netlink.as_fd(), &s.raw)).count());
        }
        let result = self.list_for_destruction(sockets).and_then(|()| self.destroy_listed(namespace.as_fd()));
        // Also after a failure: a socket that stays listed would be destroyed if it connects to that backend again.
        for socket in sockets {
            let _ = self.destroy_list.delete(&socket.raw.cookie.to_ne_bytes());
        }
        result
    }

    fn list_for_destruction(&self, sockets: &[&ConnectedSocket]) -> Result<()> {
        for socket in sockets {
            let peer = socket.raw.peer;
            self.destroy_list
                .update(&socket.raw.cookie.to_ne_bytes(), bytes_of(&peer), MapFlags::ANY)
                .context(|| "cannot write the map destroy_list".into())?;
        }
        Ok(())
    }

    /// Destroys the listed sockets of this namespace.
    fn destroy_listed(&self, namespace: BorrowedFd<'_>) -> Result<usize> {
        let program = self.object.progs_mut().find(|p| p.name() == "destroy_listed");
        let program = program.ok_or_else(|| missing_program("destroy_listed"))?;
        let link = program.attach().context(|| "cannot iterate over UDP sockets".into())?;
        let mut destroyed = BTreeSet::new();
        for _ in 0..10 {
            let before = destroyed.len();
            let iterator = self.namespaces.open(namespace, NamespaceFile::UdpIterator(link.as_fd()))?;
            destroyed.extend(read_all(File::from(iterator))?.0.chunks_exact(8).filter_map(from_bytes::<u64>));
            if destroyed.len() == before {
                break;
            }
        }
        Ok(destroyed.len())
    }
}

/// One entry of the record of a TCP or UDP socket.
#[derive(Clone, Debug)]
pub struct SocketRecord {
    pub protocol: Protocol,
    pub cookie: u64,
    pub netns_inode: u32,
    pub owner: OwnerId,
    pub dialled: Address,
    pub dialled_port: u16,
    pub chosen: Address,
    pub chosen_port: u16,
}

pub struct SocketRecordReader {
    // The object must stay open while the links are used.
    _object: Object,
    iterators: Vec<(Protocol, Link)>,
}

impl SocketRecordReader {
    pub fn new(maps: &MapSet) -> Result<SocketRecordReader> {
        let constants = LoadConstants { shards: 1, ..Default::default() };
        let object = load(maps, &Sizes::for_services(16), 1, constants, false)?;
        let mut iterators = Vec::new();
        for (protocol, program, map) in
            [(Protocol::Udp, "list_udp", "udp_record"), (Protocol::Tcp, "list_tcp", "tcp_record")]
        {
            iterators.push((protocol, attach_iterator(&object, program, &maps.handle(map)?)?));
        }
        Ok(SocketRecordReader { _object: object, iterators })
    }

    pub fn all(&self) -> Result<Vec<SocketRecord>> {
        let mut all = Vec::new();
        for (protocol, link) in &self.iterators {
            all.extend(list_entries(link)?.into_iter().map(|raw| SocketRecord {
                protocol: *protocol,
                cookie: raw.cookie,
                netns_inode: raw.netns_inode,
                owner: raw.peer.owner,
                dialled: wire::read_address(&raw.peer.dialled),
                dialled_port: u16::from_be(raw.peer.dialled_port),
                chosen: wire::read_address(&raw.peer.chosen),
                chosen_port: u16::from_be(raw.peer.chosen_port),
            }));
        }
        Ok(all)
    }
}

fn load(maps: &MapSet, sizes: &Sizes, shards: u32, constants: LoadConstants, exact: bool) -> Result<Object> {
    let mut open = object::open(object::SOCKETS, "sockets")?;
    object::prepare(&mut open, sizes, shards, maps, constants)?;
    for mut program in open.progs_mut() {
        let name = program.name().to_string_lossy().into_owned();
        let is_recount = recount::PROGRAMS.contains(&name.as_str());
        program.set_autoload(!is_recount && (exact || name != "destroy_listed"));
    }
    object::load(open, "sockets")
}

pub fn missing_program(name: &str) -> Error {
    Error::Message(format!("there is no program {name} in the BPF object sockets"))
}

pub fn attach_iterator(object: &Object, program: &str, record: &MapHandle) -> Result<Link> {
    let link = object.progs_mut().find(|p| p.name() == program).map(|p| p.attach_iter(record.as_fd()));
    link.ok_or_else(|| missing_program(program))?.context(|| "cannot iterate over the socket records".into())
}

/// Lists every socket that exists during the whole call. The kernel iterates over the records by position: if it pauses
/// between two reads and a record before that position is removed, it skips the next record. A pass that paused is
/// therefore repeated, and the results of all passes are merged.
fn list_entries(link: &Link) -> Result<Vec<abi::socket_entry>> {
    let mut entries = BTreeMap::new();
    for _ in 0..MAX_PASSES {
        let iterator = Iter::new(link).context(|| "cannot start an iteration over sockets".into())?;
        let (bytes, paused) = read_all(iterator)?;
        let all = bytes.chunks_exact(size_of::<abi::socket_entry>()).filter_map(from_bytes::<abi::socket_entry>);
        entries.extend(all.map(|one| ((one.cookie, bytes_of(&one.peer).to_vec()), one)));
        if !paused {
            break;
        }
    }
    Ok(entries.into_values().collect())
}

/// Reads the whole output of an iterator, and returns whether the iterator paused before its end.
fn read_all(mut iter: impl Read) -> Result<(Vec<u8>, bool)> {
    // The kernel pauses when the buffer is full, and uses at most 32 KiB. `read_to_end` would start with a few bytes.
    let (mut bytes, mut buffer, mut reads) = (Vec::new(), vec![0; 8 * 4096], 0);
    loop {
        let count = iter.read(&mut buffer).context(|| "cannot read the sockets from the iterator".into())?;
        if count == 0 {
            return Ok((bytes, reads > 1));
        }
        bytes.extend_from_slice(&buffer[..count]);
        reads += 1;
    }
}

fn read_entry(raw: abi::socket_entry) -> ConnectedSocket {
    ConnectedSocket {
        owner: raw.peer.owner,
        dialled: wire::read_address(&raw.peer.dialled),
        dialled_port: u16::from_be(raw.peer.dialled_port),
        chosen: wire::read_address(&raw.peer.chosen),
        chosen_port: u16::from_be(raw.peer.chosen_port),
        epoch: raw.epoch,
        raw,
    }
}
