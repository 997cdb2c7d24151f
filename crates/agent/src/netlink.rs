//! Opens netlink sockets for devices, addresses and routes.

use futures::channel::mpsc::UnboundedReceiver;
use rtnetlink::packet_core::NetlinkMessage;
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::sys::SocketAddr;
use rtnetlink::{Handle, MulticastGroup};
use std::io;
use tokio::task::JoinSet;

/// A socket for requests, and one for the notifications of some groups.
pub struct NetlinkConnection {
    pub handle: Handle,
    pub notifications: UnboundedReceiver<(NetlinkMessage<RouteNetlinkMessage>, SocketAddr)>,
    /// Read the sockets; aborted on drop.
    pub _tasks: JoinSet<()>,
}

impl NetlinkConnection {
    /// Opens sockets in the network namespace of this thread.
    pub fn open(groups: &[MulticastGroup]) -> io::Result<NetlinkConnection> {
        let mut tasks = JoinSet::new();
        let (connection, handle, _) = rtnetlink::new_connection()?;
        tasks.spawn(connection);
        // A separate socket, so that a flood of notifications cannot drop responses.
        let (connection, _, notifications) = rtnetlink::new_multicast_connection(groups)?;
        tasks.spawn(connection);
        Ok(NetlinkConnection { handle, notifications, _tasks: tasks })
    }
}
