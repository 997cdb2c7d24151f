//! What a client should see of a flow: the text of a cell in `matrix.txt` or `flows.txt`.

use beeline_harness::packet::FlowResult;
use std::fmt;
use std::net::IpAddr;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpectedSource {
    /// The client's own address.
    Client,
    /// An address of node-1.
    Node,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expectation {
    /// One of these servers answers and sees this source.
    Answered(Vec<String>, ExpectedSource),
    Refused,
    Dropped,
}

impl Expectation {
    /// Parses `refused`, `dropped` or `pod-a,pod-c/node`.
    pub fn parse(text: &str) -> Expectation {
        match (text, text.split_once('/')) {
            ("refused", _) => Expectation::Refused,
            ("dropped", _) => Expectation::Dropped,
            (_, Some((names, source))) => {
                let source = match source {
                    "client" => ExpectedSource::Client,
                    "node" => ExpectedSource::Node,
                    _ => panic!("{text}: the source is client or node"),
                };
                Expectation::Answered(names.split(',').map(str::to_owned).collect(), source)
            }
            _ => panic!("{text}: expected refused, dropped or NAME/SOURCE"),
        }
    }

    /// Checks a result. `source` is the client's address, `node` are the addresses of node-1.
    pub fn is_met(&self, result: &FlowResult, source: IpAddr, node: &[IpAddr]) -> bool {
        match (self, result) {
            (Expectation::Refused, FlowResult::Refused) | (Expectation::Dropped, FlowResult::Dropped) => true,
            (Expectation::Answered(names, expected), FlowResult::Answered(server)) => {
                names.contains(&server.name)
                    && match expected {
                        ExpectedSource::Client => server.peer.ip() == source,
                        ExpectedSource::Node => node.contains(&server.peer.ip()),
                    }
            }
            _ => false,
        }
    }

    /// How often a flow is dialled: several times if the wrong server could be picked by chance.
    pub fn repetitions(&self) -> usize {
        if matches!(self, Expectation::Answered(..)) { 4 } else { 1 }
    }
}

impl fmt::Display for Expectation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Expectation::Refused => f.write_str("refused"),
            Expectation::Dropped => f.write_str("dropped"),
            Expectation::Answered(names, source) => write!(f, "{} seeing {source:?}", names.join(" or ")),
        }
    }
}

/// The lines of a table without comments, split into words. The first line is the header.
pub fn table(text: &str) -> Vec<Vec<&str>> {
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    let rows: Vec<Vec<&str>> = lines.map(|line| line.split_whitespace().collect()).collect();
    let width = rows.first().map_or(0, Vec::len);
    assert!(rows.len() > 1 && rows.iter().all(|row| row.len() == width), "a row has not {width} cells: {rows:?}");
    rows
}
