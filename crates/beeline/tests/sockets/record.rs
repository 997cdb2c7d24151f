//! What a socket remembers, where it could be wrong: connects that fail, direct dials of a pod that a service led to, a
//! backend that changes while answers are under way, and sockets that outgrow their record.

use crate::ground::{Ground, Object, eventually};
use crate::kind::ways;
use crate::trap::{ask, web};
use beeline_lab::{Errno, Family, Lab, Socket, mapped};
use std::net::SocketAddr;

fn fails(socket: &Socket<'_>, to: SocketAddr, errno: Errno) {
    assert_eq!(socket.connect(to).unwrap_err().errno(), Some(errno), "{to}");
}

/// The kernel keeps the connection that there was, and so must the record: for what is shown, and for the day when its
/// backend goes.
#[test]
fn a_connect_that_fails_leaves_the_socket_as_it_was() {
    let lab = Lab::new(1).unwrap();
    let objects = [Object::service("web", 10).at(&[(lab.pod(0), "node-1")]), Object::service("none", 11)];
    let ground = Ground::on(lab, &objects, &[]);
    let _server = ground.lab.pod(0).serve(8080).unwrap();
    let client = ground.lab.node().client().unwrap();
    let none = ways("10.96.0.11", "fd00:96::11", 80);
    // Without SO_BROADCAST the kernel itself says no.
    let broadcast: SocketAddr = "255.255.255.255:80".parse().unwrap();
    let denied = [Some(broadcast), None, Some(mapped(broadcast))];
    let mut sockets = Vec::new();
    for (way, to) in web().into_iter().enumerate() {
        let socket = client.udp(Family::of(to)).unwrap();
        socket.connect(to).unwrap();
        fails(&socket, none[way], Errno::ECONNREFUSED);
        assert_eq!((socket.peer().unwrap(), ask(&socket, None)), (to, (to, "pod-a".into())));
        if let Some(denied) = denied[way] {
            fails(&socket, denied, Errno::EACCES);
            assert_eq!((socket.peer().unwrap(), ask(&socket, None)), (to, (to, "pod-a".into())));
        }
        sockets.push(socket);
    }
    ground.apply(&Object::service("web", 10));
    for socket in &sockets {
        eventually("it is destroyed with its backend", || {
            socket.peer().is_err_and(|e| e.errno() == Some(Errno::ENOTCONN))
        });
    }
}
