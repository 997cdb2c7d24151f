//! The compared paths from the host to the service.

use std::net::SocketAddrV4;

use super::network::{NODE_PORT, NODES, SERVICE};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum DialPath {
    /// Beeline, pods reached by routes.
    Direct,
    /// Beeline, pods reached by their nodes' nodePort.
    Node,
    /// No Beeline: the nodePort of one node.
    Plain,
    /// No Beeline: the nodePorts of all nodes, round-robin.
    Spread,
}

impl DialPath {
    pub const ALL: [DialPath; 4] = [DialPath::Direct, DialPath::Node, DialPath::Plain, DialPath::Spread];

    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "Beeline, direct",
            Self::Node => "Beeline, node + nodePort",
            Self::Plain => "nodePort of one node",
            Self::Spread => "nodePorts of all nodes in turn",
        }
    }

    /// Command line argument of the application.
    pub fn argument(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Node => "node",
            Self::Plain => "plain",
            Self::Spread => "spread",
        }
    }

    /// The agent's `--pod-access`, where there is an agent.
    pub fn pods(self) -> Option<&'static str> {
        match self {
            Self::Direct => Some("direct"),
            Self::Node => Some("node"),
            Self::Plain | Self::Spread => None,
        }
    }

    /// Address that the application dials.
    pub fn target(self, number: usize) -> SocketAddrV4 {
        match self {
            Self::Direct | Self::Node => SERVICE,
            Self::Plain => SocketAddrV4::new(NODES[0].address, NODE_PORT),
            Self::Spread => SocketAddrV4::new(NODES[number % NODES.len()].address, NODE_PORT),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn every_argument_is_parsed() {
        for path in DialPath::ALL {
            assert_eq!(DialPath::from_str(path.argument(), false), Ok(path));
        }
    }
}
