//! Reads the table from the kernel and compares it with its definition.

use std::fmt;

use super::{
    definition::ChainDefinition,
    expression,
    request::{
        READ_CHAIN, READ_TABLE, RULE_CHAIN, RULE_EXPRESSIONS, TABLE_FLAGS, TABLE_USE, chain_attributes, read_chain,
        read_rules, read_table,
    },
};
use crate::{attribute::Attributes, error::Result, message::NetlinkRequest, socket::NetlinkSocket};

/// A dump that was interrupted by changes of other tables is repeated this many times at most. Then the last one is
/// used: if the table itself changed meanwhile, the monitor reports it.
const DUMP_ATTEMPTS: usize = 5;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TableState {
    Absent,
    Complete,
    /// The table exists and differs from its definition. The list is not empty.
    Incomplete(Vec<TableProblem>),
}

/// A difference between the table and its definition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TableProblem {
    /// The table has other flags: 1 is dormant, which disables all chains.
    WrongFlags {
        flags: u32,
    },
    MissingChain {
        chain: &'static str,
    },
    /// A chain has another type, hook, priority or policy.
    WrongChain {
        chain: &'static str,
    },
    /// Rules are missing, changed, in another order, or additional.
    WrongRules {
        chain: &'static str,
        expected: usize,
        found: usize,
    },
    /// Chains, sets or other objects that are not part of the definition.
    AdditionalObjects {
        count: u32,
    },
}

impl fmt::Display for TableProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TableProblem::WrongFlags { flags } => write!(f, "the table has the flags {flags:#x}"),
            TableProblem::MissingChain { chain } => write!(f, "chain {chain} is missing"),
            TableProblem::WrongChain { chain } => write!(f, "chain {chain} has another type, hook, priority or policy"),
            TableProblem::WrongRules { chain, expected, found } => {
                write!(f, "chain {chain} has {found} rules that are not the {expected} expected ones")
            }
            TableProblem::AdditionalObjects { count } => write!(f, "{count} additional objects"),
        }
    }
}

/// The number of packets that reached a rule's counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleCounter {
    pub chain: &'static str,
    /// `dnat`, `reject-tcp` or `reject-other`.
    pub rule: &'static str,
    pub packets: u64,
    pub bytes: u64,
}

/// A rule of the kernel: its chain and its attributes.
pub(crate) struct FoundRule {
    chain: String,
    attributes: Vec<u8>,
}

impl FoundRule {
    fn expressions(&self) -> Attributes<'_> {
        Attributes(&self.attributes).nested(RULE_EXPRESSIONS).unwrap_or(Attributes(&[]))
    }
}

/// Compares the table with its definition.
pub(crate) fn read(socket: &mut NetlinkSocket, table: &str, chains: &[ChainDefinition]) -> Result<TableState> {
    let Some(found) = find(socket, &read_table(table))? else { return Ok(TableState::Absent) };
    let found = Attributes(&found);
    let mut problems = Vec::new();
    problems.extend(found.u32(TABLE_FLAGS).filter(|&flags| flags != 0).map(|flags| TableProblem::WrongFlags { flags }));
    let objects = found.u32(TABLE_USE).unwrap_or(0);
    let rules = rules(socket, table)?;
    let mut present = 0;
    for chain in chains {
        let problem = chain_problem(socket, table, chain, &rules)?;
        present += u32::from(!matches!(problem, Some(TableProblem::MissingChain { .. })));
        problems.extend(problem);
    }
    let count = objects.saturating_sub(present);
    problems.extend((count > 0).then_some(TableProblem::AdditionalObjects { count }));
    Ok(if problems.is_empty() { TableState::Complete } else { TableState::Incomplete(problems) })
}

fn chain_problem(
    socket: &mut NetlinkSocket,
    table: &str,
    chain: &ChainDefinition,
    rules: &[FoundRule],
) -> Result<Option<TableProblem>> {
    let Some(found) = find(socket, &read_chain(table, chain.name))? else {
        return Ok(Some(TableProblem::MissingChain { chain: chain.name }));
    };
    if !Attributes(&found).contain(chain_attributes(table, chain).reader()) {
        return Ok(Some(TableProblem::WrongChain { chain: chain.name }));
    }
    let found: Vec<&FoundRule> = rules.iter().filter(|rule| rule.chain == chain.name).collect();
    let mut pairs = chain.rules.iter().zip(&found);
    let matches = found.len() == chain.rules.len()
        && pairs.all(|(expected, found)| expression::matches(&expected.expressions, found.expressions()));
    let problem = TableProblem::WrongRules { chain: chain.name, expected: chain.rules.len(), found: found.len() };
    Ok((!matches).then_some(problem))
}

/// The counters of all rules of the definition that are in the kernel.
pub(crate) fn counters(
    socket: &mut NetlinkSocket,
    table: &str,
    chains: &[ChainDefinition],
) -> Result<Vec<RuleCounter>> {
    let rules = rules(socket, table)?;
    let find = |chain: &ChainDefinition, index: usize| {
        let rule = &chain.rules[index];
        let mut found = rules.iter().filter(|found| found.chain == chain.name);
        let found = found.find(|found| expression::matches(&rule.expressions, found.expressions()))?;
        let (packets, bytes) = expression::counter_values(found.expressions())?;
        Some(RuleCounter { chain: chain.name, rule: rule.name, packets, bytes })
    };
    Ok(chains.iter().flat_map(|chain| (0..chain.rules.len()).filter_map(move |index| find(chain, index))).collect())
}

/// Reads one object. `None` if it does not exist.
fn find(socket: &mut NetlinkSocket, request: &NetlinkRequest) -> Result<Option<Vec<u8>>> {
    let mut found = None;
    match socket.request(request, |message| found = Some(message.attributes().0.to_vec())) {
        Err(error) if [READ_TABLE, READ_CHAIN].iter().any(|action| error.errno_of(action) == Some(libc::ENOENT)) => {
            Ok(None)
        }
        other => other.map(|()| found),
    }
}

/// All rules of the table, in order.
fn rules(socket: &mut NetlinkSocket, table: &str) -> Result<Vec<FoundRule>> {
    let mut rules = Vec::new();
    for _ in 0..DUMP_ATTEMPTS {
        rules.clear();
        let consistent = socket.dump(&read_rules(table), |message| {
            let attributes = message.attributes();
            let chain = attributes.text(RULE_CHAIN).unwrap_or_default().to_owned();
            rules.push(FoundRule { chain, attributes: attributes.0.to_vec() });
        })?;
        if consistent {
            break;
        }
    }
    Ok(rules)
}
