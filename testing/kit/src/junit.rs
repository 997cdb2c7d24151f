//! Results of upstream's specs, read from their JUnit reports.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context, Result, ensure};
use roxmltree::{Document, Node};

#[derive(Clone, Debug, PartialEq, PartialOrd)]
pub struct Spec {
    pub state: String,
    pub name: String,
    pub seconds: f32,
    pub reason: String,
}

/// Reads all reports of a directory. The specs are sorted by state and name.
pub fn read(dir: &Path) -> Result<Vec<Spec>> {
    let mut specs = Vec::new();
    let entries = fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?.flatten();
    let mut files = 0;
    for path in entries.map(|entry| entry.path()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with("junit") && name.ends_with(".xml") {
            files += 1;
            let text = fs::read_to_string(&path)?;
            specs.extend(parse(&text).with_context(|| format!("cannot read {}", path.display()))?);
        }
    }
    ensure!(files > 0, "no report was written: read {}", dir.join("log").display());
    specs.sort_by(|a, b| (&a.state, &a.name).cmp(&(&b.state, &b.name)));
    Ok(specs)
}

fn parse(text: &str) -> Result<Vec<Spec>> {
    let document = Document::parse(text)?;
    let cases = document.descendants().filter(|node| node.has_tag_name("testcase"));
    Ok(cases.map(spec).filter(is_reported).collect())
}

fn spec(case: Node) -> Spec {
    let attribute = |name: &str| case.attribute(name).unwrap_or_default().to_owned();
    let reason = case.children().find(|child| ["failure", "error", "skipped"].contains(&child.tag_name().name()));
    let reason = reason.and_then(|reason| reason.attribute("message").or(reason.text())).unwrap_or_default();
    Spec {
        state: attribute("status"),
        name: attribute("name"),
        seconds: attribute("time").parse().unwrap_or(0.0),
        reason: reason.split_whitespace().collect::<Vec<_>>().join(" "),
    }
}

/// Whether the result of a spec is reported. Specs that the filter skipped are not; those that skipped themselves are.
/// Set-up of the suite is reported only if it fails.
fn is_reported(spec: &Spec) -> bool {
    match (spec.name.starts_with("[It]"), spec.state.as_str()) {
        (true, "skipped") => spec.reason.starts_with("skipped -"),
        (true, _) => true,
        (false, state) => state == "failed",
    }
}

pub fn table(specs: &[Spec]) -> String {
    let mut lines = String::new();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for spec in specs {
        *counts.entry(&spec.state).or_default() += 1;
        let reason: String = spec.reason.chars().take(300).collect();
        let reason = if reason.is_empty() { reason } else { format!(" :: {reason}") };
        lines += &format!("{:<11} {:>6.1} s  {}{reason}\n", spec.state, spec.seconds, spec.name);
    }
    let counts: Vec<String> = counts.iter().map(|(state, count)| format!("{count} {state}")).collect();
    lines + if counts.is_empty() { "no spec ran".to_owned() } else { counts.join(", ") }.as_str() + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specs_that_the_filter_skipped_are_not_reported() {
        let text = r#"<testsuites><testsuite>
            <testcase name="[It] serves" status="passed" time="2.5"/>
            <testcase name="[It] breaks" status="failed" time="1"><failure message="no&#10; answer"/></testcase>
            <testcase name="[It] other" status="skipped"><skipped message="skipped"/></testcase>
            <testcase name="[It] shy" status="skipped"><skipped message="skipped - needs two zones"/></testcase>
            <testcase name="[SynchronizedBeforeSuite]" status="passed"/>
        </testsuite></testsuites>"#;
        let specs = parse(text).unwrap();
        let names: Vec<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
        assert_eq!(names, ["[It] serves", "[It] breaks", "[It] shy"]);
        let table = table(&specs);
        assert!(table.contains("failed         1.0 s  [It] breaks :: no answer\n"), "{table}");
        assert!(table.ends_with("1 failed, 1 passed, 1 skipped\n"), "{table}");
    }

    #[test]
    fn a_run_without_reports_is_an_error() {
        assert_eq!(table(&[]), "no spec ran\n");
        assert!(read(tempfile::tempdir().unwrap().path()).is_err());
    }
}
