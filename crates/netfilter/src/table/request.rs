//! Requests to nf_tables: tables, chains and rules of the family inet.

use super::{
    definition::{ChainDefinition, RuleDefinition},
    expression,
};
use crate::{
    attribute::AttributeWriter,
    message::{APPEND, CREATE, EXCLUSIVE, NetlinkRequest, kind},
};

pub(crate) const FAMILY: u8 = libc::NFPROTO_INET as u8;
pub(crate) const SUBSYSTEM: i32 = libc::NFNL_SUBSYS_NFTABLES;

pub(crate) const TABLE_NAME: u16 = 1; // NFTA_TABLE_NAME
pub(crate) const TABLE_FLAGS: u16 = 2; // NFTA_TABLE_FLAGS
pub(crate) const TABLE_USE: u16 = 3; // NFTA_TABLE_USE
pub(crate) const RULE_CHAIN: u16 = 2; // NFTA_RULE_CHAIN
pub(crate) const RULE_EXPRESSIONS: u16 = 4; // NFTA_RULE_EXPRESSIONS
const CHAIN_TABLE: u16 = 1; // NFTA_CHAIN_TABLE
const CHAIN_NAME: u16 = 3; // NFTA_CHAIN_NAME
const CHAIN_HOOK: u16 = 4; // NFTA_CHAIN_HOOK
const CHAIN_POLICY: u16 = 5; // NFTA_CHAIN_POLICY
const CHAIN_TYPE: u16 = 7; // NFTA_CHAIN_TYPE
const HOOK_NUMBER: u16 = 1; // NFTA_HOOK_HOOKNUM
const HOOK_PRIORITY: u16 = 2; // NFTA_HOOK_PRIORITY
const RULE_TABLE: u16 = 1; // NFTA_RULE_TABLE
const RULE_USERDATA: u16 = 7; // NFTA_RULE_USERDATA

pub(crate) const CREATE_TABLE: &str = "create the table";
pub(crate) const DELETE_TABLE: &str = "delete the table";
pub(crate) const READ_TABLE: &str = "read the table";
pub(crate) const READ_CHAIN: &str = "read a chain";
pub(crate) const READ_RULES: &str = "read the rules";

fn request(action: &'static str, message: i32, flags: u16, attributes: AttributeWriter) -> NetlinkRequest {
    NetlinkRequest { action, kind: kind(SUBSYSTEM, message), flags, family: FAMILY, resource: 0, attributes }
}

pub(crate) fn create_table(table: &str) -> NetlinkRequest {
    let attributes = AttributeWriter::new().text(TABLE_NAME, table).u32(TABLE_FLAGS, 0);
    request(CREATE_TABLE, libc::NFT_MSG_NEWTABLE, CREATE | EXCLUSIVE, attributes)
}

/// Deletes the table with everything in it.
pub(crate) fn delete_table(table: &str) -> NetlinkRequest {
    request(DELETE_TABLE, libc::NFT_MSG_DELTABLE, 0, AttributeWriter::new().text(TABLE_NAME, table))
}

pub(crate) fn create_chain(table: &str, chain: &ChainDefinition) -> NetlinkRequest {
    request("create a chain", libc::NFT_MSG_NEWCHAIN, CREATE, chain_attributes(table, chain))
}

pub(crate) fn create_rule(table: &str, chain: &ChainDefinition, rule: &RuleDefinition) -> NetlinkRequest {
    let attributes = AttributeWriter::new().text(RULE_TABLE, table).text(RULE_CHAIN, chain.name);
    let attributes = attributes.nested(RULE_EXPRESSIONS, expression::write(&rule.expressions));
    let attributes = attributes.bytes(RULE_USERDATA, &comment(rule.name));
    request("create a rule", libc::NFT_MSG_NEWRULE, CREATE | APPEND, attributes)
}

pub(crate) fn read_table(table: &str) -> NetlinkRequest {
    request(READ_TABLE, libc::NFT_MSG_GETTABLE, 0, AttributeWriter::new().text(TABLE_NAME, table))
}

pub(crate) fn read_chain(table: &str, chain: &str) -> NetlinkRequest {
    let attributes = AttributeWriter::new().text(CHAIN_TABLE, table).text(CHAIN_NAME, chain);
    request(READ_CHAIN, libc::NFT_MSG_GETCHAIN, 0, attributes)
}

pub(crate) fn read_rules(table: &str) -> NetlinkRequest {
    request(READ_RULES, libc::NFT_MSG_GETRULE, 0, AttributeWriter::new().text(RULE_TABLE, table))
}

/// The attributes that a chain is created with, which the kernel must return later.
pub(crate) fn chain_attributes(table: &str, chain: &ChainDefinition) -> AttributeWriter {
    let hook = AttributeWriter::new().u32(HOOK_NUMBER, libc::NF_INET_PRE_ROUTING as u32);
    AttributeWriter::new()
        .text(CHAIN_TABLE, table)
        .text(CHAIN_NAME, chain.name)
        .nested(CHAIN_HOOK, hook.u32(HOOK_PRIORITY, chain.priority as u32))
        .u32(CHAIN_POLICY, libc::NF_ACCEPT as u32)
        .text(CHAIN_TYPE, chain.kind)
}

/// A comment as `nft` stores it in the user data of a rule: type 0, length, text with a final NUL.
fn comment(text: &str) -> Vec<u8> {
    let mut bytes = vec![0, u8::try_from(text.len() + 1).expect("comments of this crate are short")];
    bytes.extend_from_slice(text.as_bytes());
    bytes.push(0);
    bytes
}
