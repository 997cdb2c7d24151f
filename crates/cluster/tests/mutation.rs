//! Loads a thousand valid folders with one random error each: no panic, no object of another document is lost, and
//! every missing object has a refusal.

mod support;

use beeline_cluster::{Converter, FolderSource, ManifestFormat, ServiceFilter, Snapshot, parse_manifests};
use beeline_harness::test_seed;
use std::fs;
use support::data;

const FILES: [&str; 6] = ["dump.yaml", "legacy.yaml", "policy.yaml", "resolver.yml", "shop.yaml", "worker.json"];

/// The parts of a file that are read or refused as a whole.
fn units(name: &str, text: &str) -> Vec<String> {
    match name.ends_with(".json") {
        // After a syntax error the start of the next JSON value is unknown.
        true => vec![text.to_owned()],
        false => text.split_inclusive("\n---\n").map(ToOwned::to_owned).collect(),
    }
}

fn mutate(random: &mut fastrand::Rng, unit: &str) -> Vec<u8> {
    // The separator is not part of the document.
    let (body, end) = unit.strip_suffix("\n---\n").map_or((unit, ""), |body| (body, "\n---\n"));
    let mut bytes = body.as_bytes().to_vec();
    let mut lines: Vec<&str> = body.lines().collect();
    let joined = |lines: &[&str]| lines.join("\n").into_bytes();
    let mutated = match random.u8(0..8) {
        0 => {
            let at = random.usize(0..bytes.len());
            bytes[at] ^= 1 << random.u8(0..8);
            bytes
        }
        1 => {
            let at = random.usize(0..bytes.len());
            bytes[at] = random.u8(..);
            bytes
        }
        2 => {
            lines.remove(random.usize(0..lines.len()));
            joined(&lines)
        }
        3 => {
            let (a, b) = (random.usize(0..lines.len()), random.usize(0..lines.len()));
            lines.swap(a, b);
            joined(&lines)
        }
        4 => {
            let line = lines[random.usize(0..lines.len())];
            lines.insert(random.usize(0..=lines.len()), line);
            joined(&lines)
        }
        5 => {
            bytes.truncate(random.usize(0..bytes.len()));
            bytes
        }
        6 => {
            let at = random.usize(0..=bytes.len());
            let junk = ["\t", "'", "\"", "[", "}", ": ", "- ", "&a ", "*a", "!x ", "|", "\u{0}", "null", "-1", "70000"];
            bytes.splice(at..at, random.choice(junk).unwrap().bytes());
            bytes
        }
        _ => {
            let at = random.usize(0..bytes.len());
            let end = (at + random.usize(1..20)).min(bytes.len());
            bytes.drain(at..end);
            bytes
        }
    };
    // A new separator would end the document and start another one, which is more than one error.
    let cut = |line: &[u8]| line.starts_with(b"---") || line.starts_with(b"...");
    if mutated.split(|byte| *byte == b'\n').filter(|line| cut(line)).count()
        > body.lines().filter(|l| cut(l.as_bytes())).count()
    {
        return unit.as_bytes().to_vec();
    }
    [&mutated, end.as_bytes()].concat()
}

fn keys(snapshot: &Snapshot) -> Vec<String> {
    let services = snapshot.services.keys().map(|name| format!("Service {name}"));
    let slices = snapshot.slices.keys().map(|name| format!("Slice {}/{}", name.namespace, name.name));
    let nodes = snapshot.nodes.keys().map(|(_, name)| format!("Node {name}"));
    let namespaces = snapshot.namespaces.keys().map(|(_, name)| format!("Namespace {name}"));
    services
        .chain(slices)
        .chain(nodes)
        .chain(namespaces)
        .chain(snapshot.policies.keys().map(ToString::to_string))
        .collect()
}

fn objects(name: &str, bytes: &[u8]) -> Snapshot {
    let format = if name.ends_with(".json") { ManifestFormat::Json } else { ManifestFormat::Yaml };
    parse_manifests(bytes, format, &mut Converter::new("local", ServiceFilter::default()))
}

#[test]
fn a_mutation_affects_only_its_own_document() {
    let mut random = fastrand::Rng::with_seed(test_seed(20_261_116));
    let folder = tempfile::tempdir().unwrap();
    let good = FolderSource::new(data(), "local", ServiceFilter::default()).load().unwrap();
    let (mut harmless, mut refused, mut other) = (0, 0, 0);
    for round in 0..1000 {
        let name = random.choice(FILES).unwrap();
        let text = fs::read_to_string(data().join(name)).unwrap();
        let units = units(name, &text);
        let broken = random.usize(0..units.len());
        let mutated = mutate(&mut random, &units[broken]);
        let mutated_file: Vec<u8> = units
            .iter()
            .enumerate()
            .flat_map(|(i, unit)| if i == broken { &mutated } else { unit.as_bytes() }.to_vec())
            .collect();
        for file in FILES {
            let bytes = if file == name { mutated_file.clone() } else { fs::read(data().join(file)).unwrap() };
            fs::write(folder.path().join(file), bytes).unwrap();
        }
        let snapshot = FolderSource::new(folder.path(), "local", ServiceFilter::default()).load().unwrap();
        let shown = || format!("round {round}, {name} unit {broken}:\n{}", String::from_utf8_lossy(&mutated));
        let own = keys(&objects(name, units[broken].as_bytes()));
        let now = keys(&snapshot);
        // Mirrored Endpoints are removed together with their Service.
        let lost: Vec<String> = keys(&good).into_iter().filter(|key| !now.contains(key)).collect();
        let elsewhere: Vec<&String> =
            lost.iter().filter(|key| !own.contains(key) && !key.contains("warehouse")).collect();
        assert!(elsewhere.is_empty(), "{elsewhere:?} lost by {}", shown());
        match (lost.is_empty(), snapshot.refusals.is_empty()) {
            (true, true) => harmless += 1,
            (_, false) => refused += 1,
            // An object may be missing without a refusal only if the file has another meaning now: another name, a kind
            // that is ignored, or nothing.
            (false, true) => {
                let renamed = now.iter().any(|key| !keys(&good).contains(key));
                assert!(renamed || is_empty(&mutated), "{lost:?} lost without a reason by {}", shown());
                other += 1;
            }
        }
    }
    println!("{harmless} harmless, {refused} refused, {other} with another meaning");
    assert!(refused > 400);
}

/// Whether the document contains nothing to serve.
fn is_empty(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let content = text.lines().any(|line| !line.trim().is_empty() && !line.trim_start().starts_with(['#', '-']));
    !content || text.contains("kind: Endpoints") && !text.contains("subsets")
}
