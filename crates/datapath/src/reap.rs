//! Stale UDP sockets: connected to a backend that is gone. `send()` on them never runs a hook again, so exactly those are
//! destroyed and the application dials anew. Find (in all namespaces at once), decide (the caller's business), destroy
//! (namespace by namespace, by cookie, only while still connected to that backend).

use crate::mapped::{bytes_of, from_bytes};
use crate::object::{self, Knobs, MapSet};
use crate::{Context, Error, Result, abi, netns, wire};
use beeline_model::row::{OwnerId, Sizes};
use beeline_model::{Address, Protocol};
use libbpf_rs::{Iter, Link, MapCore, MapFlags, MapHandle, Object};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::os::fd::AsFd;
use std::path::PathBuf;

/// Over the records, where each had to pause.
const WALKS: usize = 4;

/// A connected UDP socket that was resolved.
#[derive(Clone, Debug)]
pub struct Connected {
    pub owner: OwnerId,
    pub dialled: Address,
    pub dialled_port: u16,
    pub chosen: Address,
    pub chosen_port: u16,
    pub epoch: u32,
    raw: abi::surveyed,
}

pub struct Reaper {
    object: Object,
    survey: Link,
    condemned: MapHandle,
    /// False before 6.5: programs cannot destroy, netlink does.
    exact: bool,
}

impl Reaper {
    pub fn new(maps: &MapSet, sizes: &Sizes, shards: u32, knobs: Knobs) -> Result<Reaper> {
        let (object, exact) = match load(maps, sizes, shards, knobs, true) {
            Ok(object) => (object, true),
            Err(error) => {
                tracing::debug!("sockets are destroyed through netlink: {error}");
                (load(maps, sizes, shards, knobs, false)?, false)
            }
        };
        let record = maps.handle("udp_record")?;
        let survey = object.progs_mut().find(|p| p.name() == "survey").map(|p| p.attach_iter(record.as_fd()));
        let survey = survey.ok_or_else(|| Error::Said("there is no program survey".into()))?;
        let survey = survey.context(|| "cannot walk the socket records".into())?;
        let condemned = object::maps_of(&object)?.handle("condemned")?;
        Ok(Reaper { object, survey, condemned, exact })
    }

    pub fn is_exact(&self) -> bool {
        self.exact
    }

    /// All connected sockets with a record; cost follows their number.
    pub fn survey(&self) -> Result<Vec<Connected>> {
        Ok(survey(&self.survey)?.into_iter().map(read_surveyed).collect())
    }

    /// Destroys them; returns how many. Passes are repeated until one finds none: before 6.16 an iterator may skip.
    pub fn destroy(&self, victims: &[Connected]) -> Result<usize> {
        let mut by_namespace: BTreeMap<u32, Vec<&Connected>> = BTreeMap::new();
        for victim in victims {
            by_namespace.entry(victim.raw.netns_inode).or_default().push(victim);
        }
        let known = netns::all();
        let mut destroyed = 0;
        for (inode, victims) in by_namespace {
            // A namespace that just ended, or that we may not enter, is no reason to leave the sockets of the others.
            match self.destroy_within(known.get(&u64::from(inode)), &victims) {
                Ok(count) => destroyed += count,
                Err(error) => tracing::warn!("stale UDP sockets of network namespace {inode}: {error}"),
            }
        }
        Ok(destroyed)
    }

    fn destroy_within(&self, path: Option<&PathBuf>, victims: &[&Connected]) -> Result<usize> {
        let named = path.and_then(|path| netns::open(path).ok());
        let namespace = named.or_else(|| victims.iter().find_map(|v| netns::of_socket(v.raw.inode)));
        let Some(namespace) = namespace else { return Ok(0) };
        netns::within(&namespace, || self.destroy_here(victims))?
    }

    fn destroy_here(&self, victims: &[&Connected]) -> Result<usize> {
        if !self.exact {
            return Ok(victims.iter().filter(|v| crate::diag::destroy(&v.raw)).count());
        }
        let result = self.condemn(victims).and_then(|()| self.walk());
        // Also after a failure: a socket that stayed condemned would die when it next connects there with good reason.
        for victim in victims {
            let _ = self.condemned.delete(&victim.raw.cookie.to_ne_bytes());
        }
        result
    }

    fn condemn(&self, victims: &[&Connected]) -> Result<()> {
        for victim in victims {
            let peer = victim.raw.peer;
            self.condemned
                .update(&victim.raw.cookie.to_ne_bytes(), bytes_of(&peer), MapFlags::ANY)
                .context(|| "cannot condemn a socket".into())?;
        }
        Ok(())
    }

    /// Destroys the condemned sockets of this namespace.
    fn walk(&self) -> Result<usize> {
        let program = self.object.progs_mut().find(|p| p.name() == "reap");
        let program = program.ok_or_else(|| Error::Said("there is no program reap".into()))?;
        let link = program.attach().context(|| "cannot walk the UDP sockets".into())?;
        let mut gone = BTreeSet::new();
        for _ in 0..10 {
            let before = gone.len();
            gone.extend(read_all(&link)?.0.chunks_exact(8).filter_map(from_bytes::<u64>));
            if gone.len() == before {
                break;
            }
        }
        Ok(gone.len())
    }
}

/// Any socket that remembers what it dialled, of both protocols: for people who look.
#[derive(Clone, Debug)]
pub struct Remembered {
    pub protocol: Protocol,
    pub cookie: u64,
    pub netns_inode: u32,
    pub owner: OwnerId,
    pub dialled: Address,
    pub dialled_port: u16,
    pub chosen: Address,
    pub chosen_port: u16,
}

pub struct Surveyor {
    // The links outlive their programs' object, which must stay open.
    _object: Object,
    walks: Vec<(Protocol, Link)>,
}

impl Surveyor {
    pub fn new(maps: &MapSet) -> Result<Surveyor> {
        let knobs = Knobs { shards: 1, epoch: 0, empty_local_drops: false, host_netns: 0 };
        let object = load(maps, &Sizes::for_services(16), 1, knobs, false)?;
        let mut walks = Vec::new();
        for (protocol, program, map) in
            [(Protocol::Udp, "survey_all", "udp_record"), (Protocol::Tcp, "survey_tcp", "tcp_record")]
        {
            let record = maps.handle(map)?;
            let found = object.progs_mut().find(|p| p.name() == program).map(|p| p.attach_iter(record.as_fd()));
            let link = found.ok_or_else(|| Error::Said(format!("there is no program {program}")))?;
            walks.push((protocol, link.context(|| "cannot walk the socket records".into())?));
        }
        Ok(Surveyor { _object: object, walks })
    }

    pub fn all(&self) -> Result<Vec<Remembered>> {
        let mut all = Vec::new();
        for (protocol, link) in &self.walks {
            all.extend(survey(link)?.into_iter().map(|raw| Remembered {
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

fn load(maps: &MapSet, sizes: &Sizes, shards: u32, knobs: Knobs, exact: bool) -> Result<Object> {
    let mut open = object::open(object::SOCKETS, "sockets")?;
    object::prepare(&mut open, sizes, shards, maps, knobs)?;
    for mut program in open.progs_mut().filter(|p| p.name() == "reap") {
        program.set_autoload(exact);
    }
    object::load(open, "sockets")
}

/// Everybody that is there all the while. The kernel goes over its list of records by places: when a walk pauses between
/// two reads and somebody before that place goes, the next one is passed over. So a walk that paused is repeated, and what
/// one of them met counts: to be missed, a socket must be the next one at a pause of each.
fn survey(link: &Link) -> Result<Vec<abi::surveyed>> {
    let mut met = BTreeMap::new();
    for _ in 0..WALKS {
        let (bytes, paused) = read_all(link)?;
        let all = bytes.chunks_exact(size_of::<abi::surveyed>()).filter_map(from_bytes::<abi::surveyed>);
        met.extend(all.map(|one| ((one.cookie, bytes_of(&one.peer).to_vec()), one)));
        if !paused {
            break;
        }
    }
    Ok(met.into_values().collect())
}

/// Also tells whether it had to pause before it was through.
fn read_all(link: &Link) -> Result<(Vec<u8>, bool)> {
    let mut iter = Iter::new(link).context(|| "cannot start a walk over sockets".into())?;
    // The kernel gathers this much before it pauses, or less if less is asked for: `read_to_end` would begin with a few bytes.
    let (mut bytes, mut buffer, mut reads) = (Vec::new(), vec![0; 8 * 4096], 0);
    loop {
        let count = iter.read(&mut buffer).context(|| "cannot walk over sockets".into())?;
        if count == 0 {
            return Ok((bytes, reads > 1));
        }
        bytes.extend_from_slice(&buffer[..count]);
        reads += 1;
    }
}

fn read_surveyed(raw: abi::surveyed) -> Connected {
    Connected {
        owner: raw.peer.owner,
        dialled: wire::read_address(&raw.peer.dialled),
        dialled_port: u16::from_be(raw.peer.dialled_port),
        chosen: wire::read_address(&raw.peer.chosen),
        chosen_port: u16::from_be(raw.peer.chosen_port),
        epoch: raw.epoch,
        raw,
    }
}
