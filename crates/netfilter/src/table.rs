//! The nftables table of the packet path. [`Table::ensure`] creates it, finds out whether it is complete, and replaces
//! it in one transaction if it is not.

mod definition;
mod expression;
pub(crate) mod request;
mod state;

use definition::ChainDefinition;
use request::{CREATE_TABLE, DELETE_TABLE, SUBSYSTEM, create_chain, create_rule, create_table, delete_table};
pub use state::{RuleCounter, TableProblem, TableState};

use crate::{
    error::{Error, Result},
    message::NetlinkRequest,
    socket::NetlinkSocket,
};

/// How often `ensure` tries again if another program creates or deletes the table at the same time.
const ATTEMPTS: usize = 5;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableConfig {
    /// The name of the table, in the family inet. Everything in a table of this name belongs to this crate.
    pub name: String,
    /// Packets with exactly this mark are refused: TCP with a reset, everything else with ICMP port unreachable.
    pub reject_mark: u32,
}

/// What [`Table::ensure`] did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ensured {
    Created,
    Unchanged,
    /// The table differed from its definition and was replaced. Its counters start at zero.
    Repaired(Vec<TableProblem>),
}

/// The table of one network namespace.
#[derive(Debug)]
pub struct Table {
    name: String,
    chains: [ChainDefinition; 2],
    socket: NetlinkSocket,
}

impl Table {
    /// Opens a socket in the network namespace of this thread. Reads and changes nothing.
    pub fn open(config: TableConfig) -> Result<Self> {
        let chains = definition::chains(config.reject_mark);
        Ok(Table { name: config.name, chains, socket: NetlinkSocket::open(0)? })
    }

    /// Compares the table with its definition.
    pub fn check(&mut self) -> Result<TableState> {
        state::read(&mut self.socket, &self.name, &self.chains)
    }

    /// Creates the table, or replaces it if it differs from its definition. There is no instant without the chains:
    /// the kernel registers the new ones before it removes the old ones.
    pub fn ensure(&mut self) -> Result<Ensured> {
        for _ in 0..ATTEMPTS {
            let state = self.check()?;
            if state == TableState::Complete {
                return Ok(Ensured::Unchanged);
            }
            match self.replace(state != TableState::Absent) {
                Err(error) if is_race(&error) => {}
                Err(error) => return Err(error),
                Ok(()) => return Ok(outcome(state)),
            }
        }
        Err(Error::Contended { table: self.name.clone(), attempts: ATTEMPTS })
    }

    /// Removes the table with everything in it. Returns whether there was one.
    pub fn remove(&mut self) -> Result<bool> {
        match self.socket.transact(SUBSYSTEM, &[delete_table(&self.name)]) {
            Err(error) if error.errno_of(DELETE_TABLE) == Some(libc::ENOENT) => Ok(false),
            other => other.map(|()| true),
        }
    }

    /// The counters of all rules that are in the kernel. They start at zero when the table is created or replaced.
    pub fn counters(&mut self) -> Result<Vec<RuleCounter>> {
        state::counters(&mut self.socket, &self.name, &self.chains)
    }

    fn replace(&mut self, exists: bool) -> Result<()> {
        let delete = exists.then(|| delete_table(&self.name));
        let chains = self.chains.iter().flat_map(|chain| chain_requests(&self.name, chain));
        let requests: Vec<_> = delete.into_iter().chain([create_table(&self.name)]).chain(chains).collect();
        self.socket.transact(SUBSYSTEM, &requests)
    }
}

fn chain_requests(table: &str, chain: &ChainDefinition) -> Vec<NetlinkRequest> {
    let rules = chain.rules.iter().map(|rule| create_rule(table, chain, rule));
    [create_chain(table, chain)].into_iter().chain(rules).collect()
}

/// Whether the table was created or deleted by another program after it was read.
fn is_race(error: &Error) -> bool {
    error.errno_of(DELETE_TABLE) == Some(libc::ENOENT) || error.errno_of(CREATE_TABLE) == Some(libc::EEXIST)
}

fn outcome(before: TableState) -> Ensured {
    match before {
        TableState::Absent => Ensured::Created,
        TableState::Complete => Ensured::Unchanged,
        TableState::Incomplete(problems) => Ensured::Repaired(problems),
    }
}
