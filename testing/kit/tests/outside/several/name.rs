//! Names of each cluster, asked with dig on the host itself.

use super::trio::{DNS, Stage};
use crate::field::eventually;

fn dig(stage: &Stage, server: &str, words: &[&str]) -> String {
    let at = format!("@{server}");
    let own = ["dig", &at, "+tries=1", "+time=3"];
    stage.trio.outside.run(&[&own, words].concat()).unwrap_or_else(|error| format!("{error:#}"))
}

fn short(stage: &Stage, server: &str, name: &str, kind: &str) -> String {
    dig(stage, server, &["+short", name, kind]).trim().to_owned()
}

/// The same while no API server answers.
pub fn are_answered_for_each_cluster(stage: &Stage, when: &str) {
    let trio = stage.trio;
    let blue = format!("web.{}.svc.blue.beeline", trio.field.namespace());
    let (green, red) = ("web.default.svc.green.beeline", "web.default.svc.red.beeline");
    let [all, in_green] = DNS;
    eventually("blue's names", || short(stage, all, &blue, "A") == trio.same[0]);
    for (at, kind) in [(0, "A"), (1, "AAAA")] {
        assert_eq!(short(stage, all, &blue, kind), trio.same[at], "{when}");
        assert_eq!(short(stage, all, red, kind), trio.own[at], "{when}");
        assert_eq!(short(stage, in_green, green, kind), trio.same[at], "{when}, in green's view");
        assert_eq!(short(stage, all, green, kind), "", "{when}: that address is blue's for everybody");
    }
    let said = dig(stage, all, &[green, "A"]);
    assert!(said.contains("is cluster blue's here: dial in a view of green"), "{when}: {said}");
    let domain = short(stage, in_green, "web.default.svc.cluster.local", "A");
    assert_eq!(domain, trio.same[0], "{when}: cluster.local is green's in its view");
    assert_eq!(short(stage, all, "web.default.svc.cluster.local", "A"), "", "{when}: blue has no default/web");
    let srv = short(stage, all, &format!("_tcp._tcp.{blue}"), "SRV");
    assert!(srv.contains(" 80 ") && srv.contains("svc.blue.beeline"), "{when}: {srv}");
    assert!(dig(stage, all, &["example.org", "A"]).contains("REFUSED"), "{when}");
    println!("names {when}: each cluster's by dig");
}
