//! The Markdown pages: every link leads to a file and a heading that exist, tables are well formed, and the README's plots
//! show the figures of docs/bench.md. `reference` compares tables with the sources.

mod reference;

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// All Markdown files of the tree.
fn pages() -> BTreeMap<PathBuf, String> {
    fn collect(dir: &Path, pages: &mut BTreeMap<PathBuf, String>) {
        for entry in std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
            let name = entry.file_name().unwrap().to_string_lossy().into_owned();
            if entry.is_dir() && name != "target" && name != ".git" {
                collect(&entry, pages);
            } else if name.ends_with(".md") {
                pages.insert(entry.clone(), read(&entry));
            }
        }
    }
    let mut pages = BTreeMap::new();
    collect(&root(), &mut pages);
    pages
}

/// The lines outside of code blocks, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_block = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let is_fence = line.trim_start().starts_with("```");
        in_block ^= is_fence;
        let is_code = in_block || is_fence || line.starts_with("    ") || line.starts_with('\t');
        (!is_code).then_some((index + 1, line))
    })
}

/// The line without its code spans.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("`")
}

/// The targets of `[text](target)`, `![text](target)` and `src="target"`.
fn links(line: &str) -> Vec<String> {
    let line = without_code(line);
    let target = |(at, start): (usize, &str)| {
        let rest = &line[at + start.len()..];
        rest.split([')', ' ', '"']).next().unwrap_or_default().to_owned()
    };
    line.match_indices("](").chain(line.match_indices("src=\"")).map(target).collect()
}

/// The anchor that GitHub gives to a heading.
fn anchor(heading: &str) -> String {
    let kept = |c: char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    heading.to_lowercase().chars().filter(|c| kept(*c)).map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn anchors(page: &str) -> BTreeSet<String> {
    let headings = prose(page).filter(|(_, line)| line.starts_with('#'));
    headings.map(|(_, line)| anchor(line.trim_start_matches('#').trim())).collect()
}

/// Why a link of this page is broken.
fn broken(page: &Path, link: &str, pages: &BTreeMap<PathBuf, String>) -> Option<&'static str> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (file, heading) = link.split_once('#').map_or((link, None), |(file, heading)| (file, Some(heading)));
    let target = if file.is_empty() { page.to_owned() } else { page.parent().unwrap().join(file) };
    let Ok(target) = target.canonicalize() else { return Some("the file does not exist") };
    if !target.starts_with(root()) {
        return Some("the file is outside of the tree");
    }
    let heading = heading?;
    let known = pages.get(&target).is_some_and(|text| anchors(text).contains(heading));
    (!known).then_some("the page has no such heading")
}

#[test]
fn every_link_leads_to_a_file_and_heading_that_exist() {
    let pages = pages();
    assert!(pages.contains_key(&root().join("README.md")) && pages.len() > 20, "{:?}", pages.keys());
    let mut count = 0;
    let mut wrong = Vec::new();
    for (page, text) in &pages {
        for (number, link) in prose(text).flat_map(|(number, line)| links(line).into_iter().map(move |l| (number, l))) {
            count += 1;
            let why = broken(page, &link, &pages);
            wrong.extend(why.map(|why| format!("{}:{number}: {link}: {why}", page.display())));
        }
    }
    assert!(count > 60, "only {count} links were found");
    assert!(wrong.is_empty(), "broken links:\n{}", wrong.join("\n"));
}

#[test]
fn a_broken_link_is_found() {
    let (pages, page) = (pages(), root().join("docs/README.md"));
    let links = links("see [a](missing.md), `[b](code.md)`, ![c](../README.md#no-such) and [d](try.md#1-a-backend)");
    assert_eq!(links, ["missing.md", "../README.md#no-such", "try.md#1-a-backend"]);
    let found: Vec<_> = links.iter().map(|link| broken(&page, link, &pages)).collect();
    assert_eq!(found, [Some("the file does not exist"), Some("the page has no such heading"), None]);
}

/// A `|` in a code span ends the cell too, unless it is escaped.
#[test]
fn all_rows_of_a_table_have_the_same_number_of_cells() {
    let mut wrong = Vec::new();
    for (page, text) in &pages() {
        let mut width = None;
        for (number, line) in prose(text) {
            let line = line.trim();
            let cells = line.starts_with('|').then(|| line.replace("\\|", "").matches('|').count());
            if let (Some(width), Some(cells)) = (width, cells)
                && width != cells
            {
                wrong.push(format!("{}:{number}: {} cells instead of {}", page.display(), cells - 1, width - 1));
            }
            width = cells;
        }
    }
    assert!(wrong.is_empty(), "tables:\n{}", wrong.join("\n"));
}

#[test]
fn every_page_of_the_documentation_is_in_its_index() {
    let (docs, index) = (root().join("docs"), read(&root().join("docs/README.md")));
    for page in pages().keys().filter(|page| page.starts_with(&docs) && **page != docs.join("README.md")) {
        let name = page.strip_prefix(&docs).unwrap().display().to_string();
        assert!(index.contains(&format!("({name})")), "docs/README.md does not list {name}");
    }
}

/// The values of a plot: per number of services, those of Beeline, nftables and iptables.
fn plotted(name: &str) -> BTreeMap<u64, Vec<f64>> {
    let values: Value = serde_json::from_str(&read(&root().join("docs/images").join(name))).unwrap();
    let (services, series) = (values["services"].as_array().unwrap(), values["series"].as_array().unwrap());
    let names: Vec<&str> = series.iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["Beeline", "nftables", "iptables"], "{name}");
    let at = |index: usize| series.iter().map(|one| one["values"][index].as_f64().unwrap()).collect();
    services.iter().enumerate().map(|(index, services)| (services.as_u64().unwrap(), at(index))).collect()
}

/// The cells of the first row of docs/bench.md that begins so.
fn bench_row(start: &str) -> Vec<String> {
    let text = read(&root().join("docs/bench.md"));
    let row = text.lines().find(|line| line.starts_with(&format!("| {start}")));
    let row = row.unwrap_or_else(|| panic!("docs/bench.md has no row {start}"));
    row.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()
}

/// `1.16x`, `10 ms`, `2.5 s` as a factor or as milliseconds.
fn figure(text: &str) -> f64 {
    let number = |unit: &str| text.strip_suffix(unit).and_then(|number| number.trim().parse::<f64>().ok());
    let milliseconds = || number("ms").or_else(|| number("s").map(|seconds| (seconds * 1000.0).round()));
    number("x").or_else(milliseconds).unwrap_or_else(|| panic!("{text} is not a figure"))
}

fn thousands(number: u64) -> String {
    if number < 1000 { number.to_string() } else { format!("{},{:03}", number / 1000, number % 1000) }
}

#[test]
fn the_plots_show_the_figures_of_the_bench_page() {
    for (services, values) in plotted("connect.json") {
        let row = bench_row(&format!("{} |", thousands(services)));
        let documented: Vec<f64> = row[1..4].iter().map(|cell| figure(cell)).collect();
        assert_eq!(values, documented, "connect() at {services} services");
    }
    let row = bench_row("one endpoint: API server's answer to kernel, p99");
    for ((services, values), cell) in plotted("programming.json").into_iter().zip(&row[1..]) {
        let documented: Vec<f64> = cell.split('/').map(|value| figure(value.trim())).collect();
        assert_eq!(values, documented, "one endpoint at {services} services");
    }
}

/// The figures of the README's text are copied from docs/bench.md.
#[test]
fn the_figures_of_the_readme_are_those_of_the_bench_page() {
    let readme = read(&root().join("README.md"));
    let why = readme.split("\n## Why\n").nth(1).and_then(|rest| rest.split("\n## ").next()).expect("a section Why");
    let ratios = plotted("connect.json");
    let (first, last) = (ratios.values().next().unwrap()[0], ratios.values().last().unwrap()[0]);
    let times: Vec<f64> = plotted("programming.json").into_values().map(|values| values[0]).collect();
    let slowest = times.iter().copied().fold(0.0, f64::max);
    for expected in [format!("{first:.2}"), format!("{last:.2}"), format!("{slowest:.0} ms")] {
        assert!(why.contains(&expected), "the section Why of README.md does not contain {expected}:\n{why}");
    }
}

/// docs/troubleshooting.md is searched for what `explain` printed.
#[test]
fn the_troubleshooting_page_quotes_explain_literally() {
    let (page, source) =
        (read(&root().join("docs/troubleshooting.md")), "crates/beeline/src/command/explain/reason.rs");
    let source = read(&root().join(source));
    let table = page.split("\n## A dial fails\n").nth(1).and_then(|rest| rest.split("\n## ").next()).unwrap();
    let cells = table
        .lines()
        .filter_map(|line| line.split(" | ").nth(1))
        .filter(|cell| cell.starts_with('`') && cell.ends_with('`'));
    let phrases: Vec<&str> = cells.flat_map(|cell| cell.trim_matches('`').split(" ... ")).collect();
    assert!(phrases.len() > 5, "{phrases:?}");
    for phrase in phrases {
        assert!(source.contains(phrase), "`explain` does not say: {phrase}");
    }
}

#[test]
fn the_readme_has_at_most_150_lines() {
    assert!(read(&root().join("README.md")).lines().count() <= 150);
}
