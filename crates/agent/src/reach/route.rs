//! The kernel's routes. It is asked which route it would take (with the route's own destination, not the address alone),
//! so that its rules, tables, metrics and next hops count exactly as for a dial: nothing of `ip rule` is imitated here.
//! What nobody can see that way are rules by mark, user or source address, which this process does not match and an
//! application may.

use super::way::{Bar, Way, cut, free, is_default};
use beeline_model::Address;
use futures::{FutureExt, Stream, StreamExt};
use ipnet::IpNet;
use rtnetlink::packet_core::{NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteType};
use rtnetlink::{Error, Handle, IpVersion, MulticastGroup, RouteMessageBuilder};
use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use tokio::task::JoinSet;

/// Of a host with more routes than this (a full table of the internet's), only the widest are looked at for service
/// addresses.
const MOST: usize = 4096;
const LOCAL_TABLE: u8 = 255;
/// The kernel answers at once, if at all.
const ANSWER: std::time::Duration = std::time::Duration::from_secs(1);

const CHANGES: [MulticastGroup; 7] = [
    MulticastGroup::Link,
    MulticastGroup::Ipv4Ifaddr,
    MulticastGroup::Ipv6Ifaddr,
    MulticastGroup::Ipv4Route,
    MulticastGroup::Ipv6Route,
    MulticastGroup::Ipv4Rule,
    MulticastGroup::Ipv6Rule,
];

/// What the kernel tells without being asked, the weightier last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// An interface or address came or went, as they do with every container. IPv4 routes may have gone with it, of which
    /// nobody is told.
    Interface,
    /// A route or rule.
    Route,
}

impl Change {
    fn of(message: &NetlinkMessage<RouteNetlinkMessage>) -> Option<Change> {
        match &message.payload {
            NetlinkPayload::InnerMessage(inner) => match inner {
                RouteNetlinkMessage::NewRoute(route) | RouteNetlinkMessage::DelRoute(route) => {
                    is_wide(route).then_some(Change::Route)
                }
                RouteNetlinkMessage::NewRule(_) | RouteNetlinkMessage::DelRule(_) => Some(Change::Route),
                _ => Some(Change::Interface),
            },
            // More than the socket could hold: whatever it was.
            NetlinkPayload::Overrun(_) => Some(Change::Route),
            _ => None,
        }
    }
}

pub struct Routes {
    handle: Handle,
    changes: std::pin::Pin<Box<dyn Stream<Item = Change> + Send + Sync>>,
    /// They read the sockets; gone with us.
    _tasks: JoinSet<()>,
}

impl Routes {
    /// Of the network namespace that this thread is in.
    pub fn open() -> io::Result<Routes> {
        let mut tasks = JoinSet::new();
        let (connection, handle, _) = rtnetlink::new_connection()?;
        tasks.spawn(connection);
        // Another socket: a flood of changes that overruns one must not cost the other its answers.
        let (connection, _, messages) = rtnetlink::new_multicast_connection(&CHANGES)?;
        tasks.spawn(connection);
        let changes = messages.filter_map(|(message, _)| std::future::ready(Change::of(&message)));
        Ok(Routes { handle, changes: Box::pin(changes), _tasks: tasks })
    }

    /// Something has changed that may change a way. All that is there is taken at once. `None`: the kernel tells no more.
    pub async fn changed(&mut self) -> Option<Change> {
        let mut first = self.changes.next().await?;
        while let Some(Some(more)) = self.changes.next().now_or_never() {
            first = first.max(more);
        }
        Some(first)
    }

    /// `None`: the kernel could not be asked.
    pub async fn way(&self, address: Address) -> Option<Way> {
        match self.ask(address.ip()).await {
            Ok(message) => Some(judge(&message)),
            Err(Error::NetlinkError(message)) => bar(message.raw_code()).map(Way::Barred),
            Err(_) => None,
        }
    }

    async fn ask(&self, ip: IpAddr) -> Result<RouteMessage, Error> {
        let mut message = match ip {
            IpAddr::V4(v4) => RouteMessageBuilder::<Ipv4Addr>::new().destination_prefix(v4, 32).build(),
            IpAddr::V6(v6) => RouteMessageBuilder::<Ipv6Addr>::new().destination_prefix(v6, 128).build(),
        };
        message.header.table = RouteHeader::RT_TABLE_UNSPEC;
        message.header.flags = RouteFlags::FibMatch;
        let mut answers = self.handle.route().get(message).execute();
        // What cannot be read is dropped below us, and nobody would ever answer.
        let answer = tokio::time::timeout(ANSWER, answers.next()).await.ok().flatten();
        answer.unwrap_or(Err(Error::RequestFailed))
    }

    /// Destinations of routes more specific than the default route, without what routes inside them bar.
    pub async fn specific(&self) -> Vec<IpNet> {
        let mut known = BTreeSet::new();
        for version in [IpVersion::V4, IpVersion::V6] {
            self.list(version, &mut known).await;
        }
        if known.len() > MOST {
            tracing::debug!("{} routes: the {MOST} widest are looked at for service addresses", known.len());
        }
        let nets: Vec<IpNet> = known.into_iter().take(MOST).map(|(_, net)| net).collect();
        let mut routes = Vec::new();
        for net in &nets {
            routes.extend(self.leads(*net, &nets).await.map(|usable| (*net, usable)));
        }
        cut(routes)
    }

    async fn list(&self, version: IpVersion, known: &mut BTreeSet<(u8, IpNet)>) {
        let message = match version {
            IpVersion::V4 => RouteMessageBuilder::<Ipv4Addr>::new().build(),
            IpVersion::V6 => RouteMessageBuilder::<Ipv6Addr>::new().build(),
        };
        let mut routes = self.handle.route().get(message).execute();
        while let Ok(Some(Ok(route))) = tokio::time::timeout(ANSWER, routes.next()).await {
            if let Some(net) = candidate(&route) {
                known.insert((net.prefix_len(), net));
            }
        }
    }

    /// Whether the kernel takes this very route for what is inside it; `None`: another one goes before it everywhere that
    /// was looked at.
    async fn leads(&self, net: IpNet, known: &[IpNet]) -> Option<bool> {
        for host in free(net, known) {
            match self.way(host.into()).await {
                Some(Way::Specific(taken)) if taken == net => return Some(true),
                Some(Way::Barred(_)) => return Some(false),
                _ => {}
            }
        }
        None
    }
}

fn destination(message: &RouteMessage) -> Option<IpNet> {
    let length = message.header.destination_prefix_length;
    let address = message.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Destination(RouteAddress::Inet(v4)) => Some(IpAddr::V4(*v4)),
        RouteAttribute::Destination(RouteAddress::Inet6(v6)) => Some(IpAddr::V6(*v6)),
        _ => None,
    });
    let any = || match message.header.address_family {
        rtnetlink::packet_route::AddressFamily::Inet6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        _ => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
    };
    IpNet::new(address.unwrap_or_else(any), length).ok().map(|net| net.trunc())
}

fn judge(message: &RouteMessage) -> Way {
    match message.header.kind {
        RouteType::BlackHole => Way::Barred(Bar::Blackhole),
        RouteType::Unreachable => Way::Barred(Bar::Unreachable),
        RouteType::Prohibit => Way::Barred(Bar::Prohibit),
        RouteType::Unicast | RouteType::Local => destination(message).map_or(Way::Barred(Bar::NoRoute), Way::by),
        // Nobody dials a pod by broadcast or multicast.
        _ => Way::Barred(Bar::NoRoute),
    }
}

/// The kernel's word for each kind of dead end, as a number below zero.
fn bar(code: i32) -> Option<Bar> {
    use nix::errno::Errno;
    match Errno::from_raw(-code) {
        Errno::ENETUNREACH | Errno::ESRCH => Some(Bar::NoRoute),
        Errno::EINVAL => Some(Bar::Blackhole),
        Errno::EHOSTUNREACH => Some(Bar::Unreachable),
        Errno::EACCES => Some(Bar::Prohibit),
        _ => None,
    }
}

fn candidate(message: &RouteMessage) -> Option<IpNet> {
    destination(message).filter(|net| is_wide(message) && !is_default(*net))
}

/// It leads somewhere beyond this host and its wires, or says that there is no way.
fn is_wide(message: &RouteMessage) -> bool {
    let kinds = [RouteType::Unicast, RouteType::BlackHole, RouteType::Unreachable, RouteType::Prohibit];
    let wanted = kinds.contains(&message.header.kind) && message.header.table != LOCAL_TABLE;
    wanted
        && destination(message).is_some_and(|net| match net {
            IpNet::V4(net) => !(net.addr().is_link_local() || net.addr().is_multicast() || net.addr().is_loopback()),
            IpNet::V6(net) => !(net.addr().is_unicast_link_local() || net.addr().is_multicast()),
        })
}
