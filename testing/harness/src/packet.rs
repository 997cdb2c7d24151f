//! Packets from outside a node: a test network with hosts whose sockets are below no hook, and flows between them.

mod address;
mod flow;
mod fragment;
mod network;
mod transfer;

pub use address::{CLIENTS, FrontendRange, IpFamily, NODE_SECOND, POD_RANGES, client_address};
pub use flow::{Flow, FlowProtocol, FlowResult};
pub use fragment::FragmentedDatagram;
pub use network::PacketNetwork;
pub use transfer::{TransferServer, transfer};
