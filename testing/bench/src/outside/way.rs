//! The ways from the host to the service.

use std::net::SocketAddrV4;

use super::site::{NODE_PORT, NODES, SERVICE};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Way {
    /// Beeline, pods reached by routes.
    Direct,
    /// Beeline, pods reached by their nodes' nodePort.
    Node,
    /// No Beeline: the nodePort of one node.
    Plain,
    /// No Beeline: the nodePorts of all nodes in turn.
    Spread,
}

impl Way {
    pub const ALL: [Way; 4] = [Way::Direct, Way::Node, Way::Plain, Way::Spread];

    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "Beeline, direct",
            Self::Node => "Beeline, node + nodePort",
            Self::Plain => "nodePort of one node",
            Self::Spread => "nodePorts of all nodes in turn",
        }
    }

    /// As it is told to a process of the application.
    pub fn word(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Node => "node",
            Self::Plain => "plain",
            Self::Spread => "spread",
        }
    }

    /// The agent's `--pods`, where there is an agent.
    pub fn pods(self) -> Option<&'static str> {
        match self {
            Self::Direct => Some("direct"),
            Self::Node => Some("node"),
            Self::Plain | Self::Spread => None,
        }
    }

    /// What the application dials.
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
    fn a_way_is_read_as_it_is_told() {
        for way in Way::ALL {
            assert_eq!(Way::from_str(way.word(), false), Ok(way));
        }
    }
}
