//! Reads the kernel's routes by netlink. The kernel is asked which route it would take for an address, so that its rules,
//! tables, metrics and next hops count exactly as for a connection; `ip rule` is not imitated here. Rules that match by
//! mark, user or source address are not seen, because this process may not match them while an application does.

use super::route_match::{BlockReason, RouteMatch, is_default, subtract_blocked, unshadowed_hosts};
use crate::netlink::NetlinkConnection;
use beeline_model::Address;
use futures::{FutureExt, Stream, StreamExt};
use ipnet::IpNet;
use rtnetlink::packet_core::{NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteType};
use rtnetlink::{Error, Handle, IpVersion, MulticastGroup, RouteMessageBuilder};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::task::JoinSet;

/// On a host with more routes than this (a full internet table), only the widest are examined for service addresses.
const MAX_ROUTES: usize = 4096;
/// After more changes than this at once, all routes are examined again.
const MAX_CHANGED_ROUTES: usize = 256;
const LOCAL_TABLE: u8 = 255;
/// The kernel answers at once. A response that the library cannot parse is dropped, and would be waited for forever.
const RESPONSE_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(1);

const MULTICAST_GROUPS: [MulticastGroup; 7] = [
    MulticastGroup::Link,
    MulticastGroup::Ipv4Ifaddr,
    MulticastGroup::Ipv6Ifaddr,
    MulticastGroup::Ipv4Route,
    MulticastGroup::Ipv6Route,
    MulticastGroup::Ipv4Rule,
    MulticastGroup::Ipv6Rule,
];

/// What notifications of the kernel say has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteChange {
    /// An interface or address was added or removed, as happens with every container. IPv4 routes that were removed with
    /// it are not notified.
    pub interface: bool,
    /// A rule or a default route changed, or notifications were lost: any route may be another one.
    pub any_route: bool,
    /// The destinations of routes that were added, changed or removed.
    pub destinations: BTreeSet<IpNet>,
}

impl RouteChange {
    fn of(message: &NetlinkMessage<RouteNetlinkMessage>) -> Option<RouteChange> {
        match &message.payload {
            NetlinkPayload::InnerMessage(inner) => match inner {
                RouteNetlinkMessage::NewRoute(route) | RouteNetlinkMessage::DelRoute(route) => {
                    destination(route).filter(|_| is_wide(route)).map(RouteChange::at)
                }
                RouteNetlinkMessage::NewRule(_) | RouteNetlinkMessage::DelRule(_) => Some(RouteChange::any()),
                _ => Some(RouteChange { interface: true, ..RouteChange::default() }),
            },
            // The socket's buffer overflowed, so any change may be lost.
            NetlinkPayload::Overrun(_) => Some(RouteChange::any()),
            _ => None,
        }
    }

    fn any() -> RouteChange {
        RouteChange { any_route: true, ..RouteChange::default() }
    }

    fn at(destination: IpNet) -> RouteChange {
        if is_default(destination) {
            return RouteChange::any();
        }
        RouteChange { destinations: [destination].into(), ..RouteChange::default() }
    }

    pub fn merge(&mut self, other: RouteChange) {
        self.interface |= other.interface;
        self.any_route |= other.any_route;
        self.destinations.extend(other.destinations);
        if self.destinations.len() > MAX_CHANGED_ROUTES {
            self.destinations.clear();
            self.any_route = true;
        }
    }
}

pub struct RouteReader {
    handle: Handle,
    changes: std::pin::Pin<Box<dyn Stream<Item = RouteChange> + Send + Sync>>,
    /// The examined routes by prefix length and destination, and whether the kernel uses or blocks each: `is_usable`.
    examined: BTreeMap<(u8, IpNet), Option<bool>>,
    lookups: AtomicU64,
    /// Read the sockets; aborted on drop.
    _tasks: JoinSet<()>,
}

impl RouteReader {
    /// Opens sockets in the network namespace of this thread.
    pub fn open() -> io::Result<RouteReader> {
        let NetlinkConnection { handle, notifications, _tasks } = NetlinkConnection::open(&MULTICAST_GROUPS)?;
        let changes = notifications.filter_map(|(message, _)| std::future::ready(RouteChange::of(&message)));
        let (examined, lookups) = (BTreeMap::new(), AtomicU64::new(0));
        Ok(RouteReader { handle, changes: Box::pin(changes), examined, lookups, _tasks })
    }

    /// Waits for the next notification and consumes all that are queued. `None` means that the socket was closed.
    pub async fn changed(&mut self) -> Option<RouteChange> {
        let mut first = self.changes.next().await?;
        while let Some(Some(more)) = self.changes.next().now_or_never() {
            first.merge(more);
        }
        Some(first)
    }

    /// The number of lookups so far.
    pub fn lookups(&self) -> u64 {
        self.lookups.load(Ordering::Relaxed)
    }

    /// The route to an address. `None` means that the request failed.
    pub async fn look_up(&self, address: Address) -> Option<RouteMatch> {
        self.lookups.fetch_add(1, Ordering::Relaxed);
        match self.request(address.ip()).await {
            Ok(message) => Some(route_match(&message)),
            Err(Error::NetlinkError(message)) => block_reason(message.raw_code()).map(RouteMatch::Blocked),
            Err(_) => None,
        }
    }

    async fn request(&self, ip: IpAddr) -> Result<RouteMessage, Error> {
        let mut message = match ip {
            IpAddr::V4(v4) => RouteMessageBuilder::<Ipv4Addr>::new().destination_prefix(v4, 32).build(),
            IpAddr::V6(v6) => RouteMessageBuilder::<Ipv6Addr>::new().destination_prefix(v6, 128).build(),
        };
        message.header.table = RouteHeader::RT_TABLE_UNSPEC;
        message.header.flags = RouteFlags::FibMatch;
        let mut responses = self.handle.route().get(message).execute();
        let response = tokio::time::timeout(RESPONSE_TIMEOUT, responses.next()).await.ok().flatten();
        response.unwrap_or(Err(Error::RequestFailed))
    }

    /// Destinations of routes more specific than the default route, without the parts that other routes block. Examines all
    /// routes.
    pub async fn specific(&mut self) -> Vec<IpNet> {
        let mut listed = BTreeSet::new();
        for version in [IpVersion::V4, IpVersion::V6] {
            self.list(version, &mut listed).await;
        }
        if listed.len() > MAX_ROUTES {
            tracing::debug!(
                routes = listed.len(),
                examined = MAX_ROUTES,
                "only the widest routes are examined for service addresses"
            );
        }
        let nets: Vec<IpNet> = listed.into_iter().take(MAX_ROUTES).map(|(_, net)| net).collect();
        self.examined = nets.iter().map(|net| ((net.prefix_len(), *net), None)).collect();
        self.examine(nets).await
    }

    /// As `specific`, after the routes to these destinations changed. Examines only the routes that overlap them: a route
    /// decides only for addresses inside its destination.
    pub async fn update_specific(&mut self, changed: &BTreeSet<IpNet>) -> Vec<IpNet> {
        for net in changed.iter().filter(|net| !is_default(**net)) {
            // A route that was removed is examined too: another one may have the same destination.
            if self.examined.len() < 2 * MAX_ROUTES {
                self.examined.entry((net.prefix_len(), *net)).or_default();
            }
        }
        let overlaps = |net: &IpNet| changed.iter().any(|other| net.contains(other) || other.contains(net));
        let nets: Vec<IpNet> = self.examined.keys().map(|(_, net)| *net).filter(overlaps).collect();
        self.examine(nets).await
    }

    async fn examine(&mut self, nets: Vec<IpNet>) -> Vec<IpNet> {
        let all: Vec<IpNet> = self.examined.keys().map(|(_, net)| *net).collect();
        for net in nets {
            let usable = self.is_usable(net, &all).await;
            self.examined.insert((net.prefix_len(), net), usable);
        }
        let usable = |((_, net), usable): (&(u8, IpNet), &Option<bool>)| Some((*net, (*usable)?));
        subtract_blocked(self.examined.iter().filter_map(usable).collect())
    }

    async fn list(&self, version: IpVersion, listed: &mut BTreeSet<(u8, IpNet)>) {
        let message = match version {
            IpVersion::V4 => RouteMessageBuilder::<Ipv4Addr>::new().build(),
            IpVersion::V6 => RouteMessageBuilder::<Ipv6Addr>::new().build(),
        };
        let mut routes = self.handle.route().get(message).execute();
        while let Ok(Some(Ok(route))) = tokio::time::timeout(RESPONSE_TIMEOUT, routes.next()).await {
            if let Some(net) = candidate(&route) {
                listed.insert((net.prefix_len(), net));
            }
        }
    }

    /// Whether the kernel uses this route for addresses inside it, or blocks them. `None` means that another route takes
    /// precedence for every address that was tried.
    async fn is_usable(&self, net: IpNet, listed: &[IpNet]) -> Option<bool> {
        for host in unshadowed_hosts(net, listed) {
            match self.look_up(host.into()).await {
                Some(RouteMatch::Specific(taken)) if taken == net => return Some(true),
                Some(RouteMatch::Blocked(_)) => return Some(false),
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

fn route_match(message: &RouteMessage) -> RouteMatch {
    match message.header.kind {
        RouteType::BlackHole => RouteMatch::Blocked(BlockReason::Blackhole),
        RouteType::Unreachable => RouteMatch::Blocked(BlockReason::Unreachable),
        RouteType::Prohibit => RouteMatch::Blocked(BlockReason::Prohibit),
        RouteType::Unicast | RouteType::Local => {
            destination(message).map_or(RouteMatch::Blocked(BlockReason::NoRoute), RouteMatch::new)
        }
        // Broadcast and multicast do not lead to a pod.
        _ => RouteMatch::Blocked(BlockReason::NoRoute),
    }
}

/// The kernel reports each kind of blocking route as a negative errno.
fn block_reason(code: i32) -> Option<BlockReason> {
    let reasons = [
        (Errno::NETUNREACH, BlockReason::NoRoute),
        (Errno::SRCH, BlockReason::NoRoute),
        (Errno::INVAL, BlockReason::Blackhole),
        (Errno::HOSTUNREACH, BlockReason::Unreachable),
        (Errno::ACCESS, BlockReason::Prohibit),
    ];
    reasons.into_iter().find(|(errno, _)| errno.raw_os_error() == -code).map(|(_, reason)| reason)
}

fn candidate(message: &RouteMessage) -> Option<IpNet> {
    destination(message).filter(|net| is_wide(message) && !is_default(*net))
}

/// Whether the route leads beyond this host and its links, or blocks its destination.
fn is_wide(message: &RouteMessage) -> bool {
    let kinds = [RouteType::Unicast, RouteType::BlackHole, RouteType::Unreachable, RouteType::Prohibit];
    let wanted = kinds.contains(&message.header.kind) && message.header.table != LOCAL_TABLE;
    wanted
        && destination(message).is_some_and(|net| match net {
            IpNet::V4(net) => !(net.addr().is_link_local() || net.addr().is_multicast() || net.addr().is_loopback()),
            IpNet::V6(net) => !(net.addr().is_unicast_link_local() || net.addr().is_multicast()),
        })
}
