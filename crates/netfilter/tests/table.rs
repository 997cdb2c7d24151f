//! The table in real network namespaces: created, left alone, repaired and removed, as `nft` shows it.

mod fixture;

use beeline_harness::{TestHost, TestNetwork};
use beeline_netfilter::{Ensured, Error, Table, TableProblem, TableState};
use fixture::{TABLE, nft, open};

const EXPECTED: &str = r#"table inet beeline {
	chain nat_prerouting {
		type nat hook prerouting priority dstnat; policy accept;
		ct status dnat counter packets 0 bytes 0 accept comment "dnat"
	}

	chain reject_prerouting {
		type filter hook prerouting priority raw; policy accept;
		meta mark 0x00bee11e meta l4proto tcp counter packets 0 bytes 0 reject with tcp reset comment "reject-tcp"
		meta mark 0x00bee11e counter packets 0 bytes 0 reject comment "reject-other"
	}
}
"#;

fn table_text(host: &TestHost) -> String {
    nft(host, &format!("list table inet {TABLE}"))
}

#[test]
fn the_table_is_created_once_and_then_left_alone() {
    let network = TestNetwork::new(0).unwrap();
    let node = network.node();
    let mut table = open(node);
    assert_eq!(table.check().unwrap(), TableState::Absent);
    assert_eq!(table.ensure().unwrap(), Ensured::Created);
    assert_eq!(table_text(node), EXPECTED);
    assert_eq!(table.check().unwrap(), TableState::Complete);
    let handles = nft_with_handles(node);
    assert_eq!(table.ensure().unwrap(), Ensured::Unchanged);
    assert_eq!(open(node).ensure().unwrap(), Ensured::Unchanged, "a second process finds it complete");
    assert_eq!(nft_with_handles(node), handles, "nothing was written");
}

/// Handles are numbers that an object keeps for its life.
fn nft_with_handles(host: &TestHost) -> String {
    let output = host.program("nft").unwrap().args(["-a", "list", "ruleset"]).run().unwrap();
    assert!(output.status.success(), "{}", output.stderr);
    output.stdout
}

/// Each command is run on a complete table. The second value is the problem that it causes.
#[test]
fn a_changed_table_is_repaired_and_the_problem_is_named() {
    let network = TestNetwork::new(0).unwrap();
    let node = network.node();
    let mut table = open(node);
    table.ensure().unwrap();
    let wrong_rules = |chain, expected, found| TableProblem::WrongRules { chain, expected, found };
    let changes = [
        ("flush chain inet beeline nat_prerouting", wrong_rules("nat_prerouting", 1, 0)),
        ("flush chain inet beeline reject_prerouting", wrong_rules("reject_prerouting", 2, 0)),
        ("insert rule inet beeline reject_prerouting meta mark 1 accept", wrong_rules("reject_prerouting", 2, 3)),
        ("add rule inet beeline nat_prerouting drop", wrong_rules("nat_prerouting", 1, 2)),
        (
            "flush chain inet beeline reject_prerouting
             add rule inet beeline reject_prerouting meta mark 1 meta l4proto tcp counter reject with tcp reset
             add rule inet beeline reject_prerouting meta mark 1 counter reject with icmpx port-unreachable",
            wrong_rules("reject_prerouting", 2, 2),
        ),
        (
            "flush chain inet beeline reject_prerouting; delete chain inet beeline reject_prerouting",
            TableProblem::MissingChain { chain: "reject_prerouting" },
        ),
        (
            "flush chain inet beeline nat_prerouting; delete chain inet beeline nat_prerouting",
            TableProblem::MissingChain { chain: "nat_prerouting" },
        ),
        (
            "add chain inet beeline reject_prerouting { policy drop; }",
            TableProblem::WrongChain { chain: "reject_prerouting" },
        ),
        ("add chain inet beeline other", TableProblem::AdditionalObjects { count: 1 }),
        ("add set inet beeline other { type ipv4_addr; }", TableProblem::AdditionalObjects { count: 1 }),
        ("add table inet beeline { flags dormant; }", TableProblem::WrongFlags { flags: 1 }),
    ];
    for (command, problem) in changes {
        nft(node, command);
        assert_eq!(table.check().unwrap(), TableState::Incomplete(vec![problem.clone()]), "{command}");
        assert_eq!(table.ensure().unwrap(), Ensured::Repaired(vec![problem]), "{command}");
        assert_eq!(table_text(node), EXPECTED, "{command}");
        assert_eq!(table.ensure().unwrap(), Ensured::Unchanged, "{command}");
    }
}

#[test]
fn a_chain_with_another_hook_or_priority_is_replaced() {
    let network = TestNetwork::new(0).unwrap();
    let node = network.node();
    let mut table = open(node);
    for hook in ["type filter hook input priority 0", "type filter hook prerouting priority 0"] {
        nft(node, &format!("add table inet beeline; add chain inet beeline reject_prerouting {{ {hook}; }}"));
        let problems = vec![
            TableProblem::MissingChain { chain: "nat_prerouting" },
            TableProblem::WrongChain { chain: "reject_prerouting" },
        ];
        assert_eq!(table.ensure().unwrap(), Ensured::Repaired(problems), "{hook}");
        assert_eq!(table_text(node), EXPECTED, "{hook}");
        assert!(table.remove().unwrap());
    }
}

#[test]
fn other_tables_are_not_touched() {
    let network = TestNetwork::new(0).unwrap();
    let node = network.node();
    nft(
        node,
        "add table inet other; add chain inet other c { type filter hook prerouting priority raw; }
         add rule inet other c tcp dport 1 counter drop
         add table ip beeline; add chain ip beeline reject_prerouting
         add table inet beeline2; add set inet beeline2 s { type ipv4_addr; }",
    );
    let others = nft_with_handles(node);
    let mut table = open(node);
    assert_eq!(table.ensure().unwrap(), Ensured::Created);
    nft(node, "flush chain inet beeline reject_prerouting");
    table.ensure().unwrap();
    assert!(table.remove().unwrap());
    assert_eq!(nft_with_handles(node), others);
}

#[test]
fn remove_deletes_the_table_and_reports_whether_there_was_one() {
    let network = TestNetwork::new(0).unwrap();
    let node = network.node();
    let mut table = open(node);
    assert!(!table.remove().unwrap());
    table.ensure().unwrap();
    assert!(table.remove().unwrap());
    assert_eq!((nft(node, "list ruleset"), table.check().unwrap()), (String::new(), TableState::Absent));
}

/// Two agents overlap during an upgrade.
#[test]
fn several_writers_at_the_same_time_meet_no_other_error_than_contention() {
    let network = TestNetwork::new(0).unwrap();
    let node = network.node();
    let mut writers = [open(node), open(node), open(node)];
    std::thread::scope(|scope| {
        for table in &mut writers {
            scope.spawn(|| {
                for _ in 0..200 {
                    // Another thread may delete or create the table between any two steps.
                    if let Err(error) = table.ensure() {
                        assert!(matches!(error, Error::Contended { .. }), "{error:?}");
                    }
                    table.remove().unwrap();
                }
            });
        }
    });
    assert_eq!(writers[0].check().unwrap(), TableState::Absent);
    assert_eq!(writers[1].ensure().unwrap(), Ensured::Created);
    assert_eq!(table_text(node), EXPECTED);
}

#[test]
fn a_missing_capability_is_named_in_the_error() {
    let network = TestNetwork::new(0).unwrap();
    let without_capability = || {
        // Capabilities belong to the thread, which ends with this function.
        let mut sets = rustix::thread::capabilities(None).unwrap();
        sets.effective.remove(rustix::thread::CapabilitySet::NET_ADMIN);
        rustix::thread::set_capabilities(None, sets).unwrap();
        Table::open(fixture::config()).unwrap().ensure().unwrap_err()
    };
    let error = network.node().run_in(without_capability).unwrap();
    assert!(error.to_string().contains("CAP_NET_ADMIN"), "{error}");
}
