//! What the table contains, as values:
//!
//! ```text
//! table inet beeline {
//!     chain nat_prerouting {
//!         type nat hook prerouting priority dstnat; policy accept;
//!         ct status dnat counter accept
//!     }
//!     chain reject_prerouting {
//!         type filter hook prerouting priority raw; policy accept;
//!         meta mark MARK meta l4proto tcp counter reject with tcp reset
//!         meta mark MARK counter reject with icmpx port-unreachable
//!     }
//! }
//! ```
//!
//! `nat_prerouting` changes no packet. The chain makes the kernel register its NAT hooks in this network namespace, and
//! the expression `ct` makes it track connections; without both, conntrack entries with NAT information have no effect.
//! One nat chain is enough: with the first one the kernel registers all four NAT hooks of IPv4 and IPv6 (prerouting,
//! input, output, postrouting), so source addresses are translated without a chain at postrouting (the test
//! `source_and_destination_are_translated_with_one_nat_chain` shows it).
//!
//! `reject_prerouting` runs before conntrack (priority -200), so a refused packet leaves no conntrack entry, and after
//! defragmentation (-400), so it sees the ports of every packet. A kernel that does not allow `reject` at prerouting
//! refuses the transaction, and `ensure` returns its error. The chain is not called `reject`, because that is a
//! keyword: `nft` could not restore the ruleset that it lists.

use super::expression::{
    Expression, accept, compare, counter, load_conntrack, load_meta, mask, reject_with_port_unreachable,
    reject_with_tcp_reset,
};

const PRIORITY_RAW: i32 = -300;
const PRIORITY_DSTNAT: i32 = -100;
const STATUS_DNAT: u32 = 1 << 5; // IPS_DST_NAT

#[derive(Clone, Debug)]
pub(crate) struct ChainDefinition {
    pub name: &'static str,
    /// `nat` or `filter`.
    pub kind: &'static str,
    pub priority: i32,
    pub rules: Vec<RuleDefinition>,
}

#[derive(Clone, Debug)]
pub(crate) struct RuleDefinition {
    /// Names the rule in counters and as its comment in `nft list ruleset`.
    pub name: &'static str,
    pub expressions: Vec<Expression>,
}

pub(crate) fn chains(reject_mark: u32) -> [ChainDefinition; 2] {
    let nat = RuleDefinition { name: "dnat", expressions: nat_rule() };
    let tcp = RuleDefinition { name: "reject-tcp", expressions: reject_tcp_rule(reject_mark) };
    let other = RuleDefinition { name: "reject-other", expressions: reject_rule(reject_mark) };
    [
        ChainDefinition { name: "nat_prerouting", kind: "nat", priority: PRIORITY_DSTNAT, rules: vec![nat] },
        ChainDefinition { name: "reject_prerouting", kind: "filter", priority: PRIORITY_RAW, rules: vec![tcp, other] },
    ]
}

fn nat_rule() -> Vec<Expression> {
    let status = [load_conntrack(libc::NFT_CT_STATUS), mask(STATUS_DNAT), compare(libc::NFT_CMP_NEQ, &[0; 4])];
    [&status[..], &[counter(), accept()]].concat()
}

fn reject_tcp_rule(mark: u32) -> Vec<Expression> {
    let tcp = [load_meta(libc::NFT_META_L4PROTO), compare(libc::NFT_CMP_EQ, &[libc::IPPROTO_TCP as u8])];
    [&has_mark(mark)[..], &tcp, &[counter(), reject_with_tcp_reset()]].concat()
}

fn reject_rule(mark: u32) -> Vec<Expression> {
    [&has_mark(mark)[..], &[counter(), reject_with_port_unreachable()]].concat()
}

fn has_mark(mark: u32) -> [Expression; 2] {
    [load_meta(libc::NFT_META_MARK), compare(libc::NFT_CMP_EQ, &mark.to_ne_bytes())]
}
