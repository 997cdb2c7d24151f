//! Expressions of nftables rules. A rule is a list of them: load a value into a register, compare it, count, decide.

use libc::c_int;

use crate::attribute::{AttributeWriter, Attributes};

const EXPRESSION_NAME: u16 = 1; // NFTA_EXPR_NAME
const EXPRESSION_DATA: u16 = 2; // NFTA_EXPR_DATA
const LIST_ELEMENT: u16 = 1; // NFTA_LIST_ELEM
const DATA_VALUE: u16 = 1; // NFTA_DATA_VALUE
const DATA_VERDICT: u16 = 2; // NFTA_DATA_VERDICT
const VERDICT_CODE: u16 = 1; // NFTA_VERDICT_CODE
const COUNTER_BYTES: u16 = 1; // NFTA_COUNTER_BYTES
const COUNTER_PACKETS: u16 = 2; // NFTA_COUNTER_PACKETS

/// The only register that the rules use.
const REGISTER: u32 = libc::NFT_REG_1 as u32;
const BITWISE_MASK_XOR: u32 = 0; // NFT_BITWISE_MASK_XOR

/// The name of an expression and its attributes, as they are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Expression {
    name: &'static str,
    attributes: AttributeWriter,
}

/// `meta mark`, `meta l4proto`: loads a property of the packet.
pub(crate) fn load_meta(key: c_int) -> Expression {
    load("meta", key)
}

/// `ct status`: loads a property of the packet's conntrack entry. Makes the kernel track connections.
pub(crate) fn load_conntrack(key: c_int) -> Expression {
    load("ct", key)
}

fn load(name: &'static str, key: c_int) -> Expression {
    // NFTA_META_DREG and NFTA_META_KEY have the same numbers as NFTA_CT_DREG and NFTA_CT_KEY.
    Expression { name, attributes: AttributeWriter::new().u32(1, REGISTER).u32(2, key as u32) }
}

/// Continues with the next expression if the register compares with the value, and with the next rule if not.
pub(crate) fn compare(operator: c_int, value: &[u8]) -> Expression {
    let attributes = AttributeWriter::new().u32(1, REGISTER).u32(2, operator as u32).nested(3, bytes(value));
    Expression { name: "cmp", attributes }
}

/// Clears the bits of the register that the mask does not have.
pub(crate) fn mask(mask: u32) -> Expression {
    let attributes = AttributeWriter::new()
        .u32(1, REGISTER) // NFTA_BITWISE_SREG
        .u32(2, REGISTER) // NFTA_BITWISE_DREG
        .u32(3, 4) // NFTA_BITWISE_LEN
        .nested(4, bytes(&mask.to_ne_bytes())) // NFTA_BITWISE_MASK
        .nested(5, bytes(&0u32.to_ne_bytes())) // NFTA_BITWISE_XOR
        .u32(6, BITWISE_MASK_XOR); // NFTA_BITWISE_OP
    Expression { name: "bitwise", attributes }
}

pub(crate) fn counter() -> Expression {
    Expression { name: "counter", attributes: AttributeWriter::new() }
}

pub(crate) fn accept() -> Expression {
    let verdict = AttributeWriter::new().u32(VERDICT_CODE, libc::NF_ACCEPT as u32);
    let verdict = AttributeWriter::new().nested(DATA_VERDICT, verdict);
    let attributes = AttributeWriter::new().u32(1, libc::NFT_REG_VERDICT as u32).nested(2, verdict);
    Expression { name: "immediate", attributes }
}

pub(crate) fn reject_with_tcp_reset() -> Expression {
    Expression { name: "reject", attributes: AttributeWriter::new().u32(1, libc::NFT_REJECT_TCP_RST as u32) }
}

/// `reject with icmpx port-unreachable`: the ICMP or ICMPv6 message, by the family of the packet.
pub(crate) fn reject_with_port_unreachable() -> Expression {
    let kind = AttributeWriter::new().u32(1, libc::NFT_REJECT_ICMPX_UNREACH as u32);
    Expression { name: "reject", attributes: kind.u8(2, libc::NFT_REJECT_ICMPX_PORT_UNREACH as u8) }
}

fn bytes(value: &[u8]) -> AttributeWriter {
    AttributeWriter::new().bytes(DATA_VALUE, value)
}

/// The value of NFTA_RULE_EXPRESSIONS.
pub(crate) fn write(expressions: &[Expression]) -> AttributeWriter {
    expressions.iter().fold(AttributeWriter::new(), |list, expression| {
        let element = AttributeWriter::new().text(EXPRESSION_NAME, expression.name);
        list.nested(LIST_ELEMENT, element.nested(EXPRESSION_DATA, expression.attributes.clone()))
    })
}

/// Whether a rule of the kernel has exactly these expressions. Values of counters do not matter.
pub(crate) fn matches(expressions: &[Expression], found: Attributes<'_>) -> bool {
    let found: Vec<Attributes<'_>> = found.iter().map(|(_, element)| Attributes(element)).collect();
    let matches = |expected: &Expression, found: &Attributes<'_>| {
        let attributes = found.nested(EXPRESSION_DATA).unwrap_or(Attributes(&[]));
        found.text(EXPRESSION_NAME) == Some(expected.name) && attributes.contain(expected.attributes.reader())
    };
    found.len() == expressions.len() && expressions.iter().zip(&found).all(|(expected, found)| matches(expected, found))
}

/// Packets and bytes of the first counter of a rule.
pub(crate) fn counter_values(found: Attributes<'_>) -> Option<(u64, u64)> {
    let elements = found.iter().map(|(_, element)| Attributes(element));
    let counter = elements.into_iter().find(|element| element.text(EXPRESSION_NAME) == Some("counter"))?;
    let values = counter.nested(EXPRESSION_DATA)?;
    Some((values.u64(COUNTER_PACKETS)?, values.u64(COUNTER_BYTES)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_match_whatever_their_counters_are() {
        let rule = [load_meta(libc::NFT_META_MARK), compare(libc::NFT_CMP_EQ, &[1, 0, 0, 0]), counter(), accept()];
        assert!(matches(&rule, write(&rule).reader()));
        let values = AttributeWriter::new().bytes(COUNTER_BYTES, &80u64.to_be_bytes());
        let values = values.bytes(COUNTER_PACKETS, &2u64.to_be_bytes());
        let mut counted = rule.clone();
        counted[2].attributes = values;
        assert!(matches(&rule, write(&counted).reader()));
        assert_eq!(counter_values(write(&counted).reader()), Some((2, 80)));
    }

    #[test]
    fn another_value_order_or_number_of_expressions_does_not_match() {
        let rule = [load_meta(libc::NFT_META_MARK), compare(libc::NFT_CMP_EQ, &[1, 0, 0, 0]), accept()];
        let value = [load_meta(libc::NFT_META_MARK), compare(libc::NFT_CMP_EQ, &[2, 0, 0, 0]), accept()];
        let order = [rule[1].clone(), rule[0].clone(), rule[2].clone()];
        let more = [rule[0].clone(), rule[1].clone(), counter(), rule[2].clone()];
        for other in [&value[..], &order, &more, &rule[..2], &[]] {
            assert!(!matches(&rule, write(other).reader()), "{other:?}");
        }
    }
}
