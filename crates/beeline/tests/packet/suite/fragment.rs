//! IP fragments of a translated flow.

use super::fixture::{PacketFixture, Sender};
use super::service::{Dialled, PacketService, TrafficPolicy};
use beeline_harness::packet::{FragmentedDatagram, IpFamily, TransferServer};

const TRANSFER_PORT: u16 = 8091;
/// More than two MTUs, so that the answer has three fragments.
const ANSWER: usize = 3500;
const ORDERS: [[usize; FragmentedDatagram::FRAGMENTS]; 6] =
    [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];

/// Each datagram is the first packet of its flow.
pub fn any_order(fixture: &mut PacketFixture<'_>) {
    let _servers: Vec<TransferServer> = [0, 2]
        .map(|pod| fixture.pod(pod))
        .map(|pod| TransferServer::start(&pod.namespace, &[pod.v4(TRANSFER_PORT), pod.v6(TRANSFER_PORT)]).unwrap())
        .into();
    let new = |name, number, policy| PacketService::new(name, number, policy).with_target_port(TRANSFER_PORT);
    let services = [
        new("fragments-here", 100, TrafficPolicy::Cluster).with(fixture.pod(0), "node-1"),
        new("fragments-elsewhere", 101, TrafficPolicy::Cluster).with(fixture.pod(2), "node-2"),
        new("fragments-local", 102, TrafficPolicy::Local).with(fixture.pod(0), "node-1"),
    ];
    fixture.apply_all(&services);
    let mut id = 0;
    for (service, dialled) in services.iter().flat_map(|service| Dialled::EXTERNAL.map(|dialled| (service, dialled))) {
        for (family, order) in IpFamily::ALL.into_iter().flat_map(|family| ORDERS.map(|order| (family, order))) {
            id += 1;
            let to = service.address(dialled, family, fixture.network);
            let source = fixture.source(Sender::Client(10), to);
            let datagram = FragmentedDatagram { source, to, answer: ANSWER, id };
            let received = datagram.exchange(&fixture.network.client.namespace, &order).unwrap();
            assert_eq!(received, Some(ANSWER), "{} {dialled:?} {family:?}, order {order:?}", service.name);
        }
    }
}
