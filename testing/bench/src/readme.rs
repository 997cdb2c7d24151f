//! The two plots of the README. Their values are stored as JSON beside the pictures, so that a run of one bench redraws
//! both plots and replaces only its own values.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::{bar_chart::BarChart, plot::Series};

/// Values of one plot: one group of bars per number of services.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct PlotValues {
    services: Vec<u32>,
    series: Vec<NamedValues>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct NamedValues {
    name: String,
    values: Vec<f64>,
}

/// A row of a result file.
#[derive(Deserialize)]
struct ResultRow {
    name: String,
    value: f64,
}

struct ReadmePlot {
    /// Name of the picture and of the file with its values.
    name: &'static str,
    title: &'static str,
    /// What a bar's length means.
    axis: &'static str,
    label: fn(f64) -> String,
    /// Result file of the bench that measures the values.
    results: &'static str,
    extract: fn(&BTreeMap<String, f64>) -> PlotValues,
}

const PLOTS: [ReadmePlot; 2] = [
    ReadmePlot {
        name: "connect",
        title: "connect() to a Service, compared with a direct dial",
        axis: "time of connect(), p50; 1x is a direct dial; logarithmic; shorter is better",
        label: factor,
        results: "socket.json",
        extract: connect_ratios,
    },
    ReadmePlot {
        name: "programming",
        title: "One changed endpoint: until the kernel uses it",
        axis: "time after the API server's answer, p99; logarithmic; shorter is better",
        label: duration,
        results: "cluster.json",
        extract: endpoint_changes,
    },
];

/// Takes new values from the result files that exist, and draws both plots.
pub fn update(results: &Path, images: &Path) -> Result<()> {
    fs::create_dir_all(images).with_context(|| format!("cannot create {}", images.display()))?;
    for plot in &PLOTS {
        let stored = images.join(plot.name).with_extension("json");
        let results = results.join(plot.results);
        if results.exists() {
            let values = (plot.extract)(&read_results(&results)?);
            fs::write(&stored, serde_json::to_string_pretty(&values)? + "\n")
                .with_context(|| format!("cannot write {}", stored.display()))?;
        }
        if !stored.exists() {
            println!("{}: no values yet; run the bench that writes {}", plot.name, results.display());
            continue;
        }
        let text = fs::read_to_string(&stored).with_context(|| format!("cannot read {}", stored.display()))?;
        let values = serde_json::from_str(&text).with_context(|| format!("cannot parse {}", stored.display()))?;
        draw(plot, &images.join(plot.name).with_extension("svg"), values)?;
    }
    Ok(())
}

fn read_results(file: &Path) -> Result<BTreeMap<String, f64>> {
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let rows: Vec<ResultRow> =
        serde_json::from_str(&text).with_context(|| format!("cannot parse {}", file.display()))?;
    Ok(rows.into_iter().map(|row| (row.name, row.value)).collect())
}

/// `connect/SERVICES/VARIANT/p50`, divided by the direct dial of the same run.
fn connect_ratios(rows: &BTreeMap<String, f64>) -> PlotValues {
    let variants =
        [("Beeline", "Beeline: service"), ("nftables", "nftables: service"), ("iptables", "iptables: service")];
    let services = sizes(rows, |name| name.strip_prefix("connect/")?.strip_suffix("/direct to the pod/p50"));
    let ratio = |services: u32, variant: &str| {
        let p50 = |variant: &str| rows.get(&format!("connect/{services}/{variant}/p50")).copied().unwrap_or_default();
        match p50("direct to the pod") {
            0.0 => 0.0,
            direct => round(p50(variant) / direct),
        }
    };
    collect(services, &variants, ratio)
}

/// `one endpoint, answer to kernel, p99/SERVICES/CONTENDER`, in milliseconds.
fn endpoint_changes(rows: &BTreeMap<String, f64>) -> PlotValues {
    const NAME: &str = "one endpoint, answer to kernel, p99";
    let contenders = [("Beeline", "Beeline"), ("nftables", "kube-proxy nftables"), ("iptables", "kube-proxy iptables")];
    let services = sizes(rows, |name| name.strip_prefix(NAME)?.strip_prefix('/')?.strip_suffix("/Beeline"));
    let value = |services: u32, contender: &str| {
        rows.get(&format!("{NAME}/{services}/{contender}")).copied().unwrap_or_default()
    };
    collect(services, &contenders, |services, contender| round(value(services, contender)))
}

fn sizes(rows: &BTreeMap<String, f64>, size: impl Fn(&str) -> Option<&str>) -> BTreeSet<u32> {
    rows.keys().filter_map(|name| size(name)?.parse().ok()).collect()
}

fn collect(services: BTreeSet<u32>, names: &[(&str, &str)], value: impl Fn(u32, &str) -> f64) -> PlotValues {
    let series = names.iter().map(|(shown, row)| NamedValues {
        name: (*shown).into(),
        values: services.iter().map(|services| value(*services, row)).collect(),
    });
    PlotValues { series: series.collect(), services: services.iter().copied().collect() }
}

fn round(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

/// `1.16x`, `63x`
fn factor(value: f64) -> String {
    if value < 10.0 && value.fract() != 0.0 { format!("{value:.2}x") } else { format!("{value:.0}x") }
}

/// Milliseconds as `8 ms`, `0.9 s`, `31 s`.
fn duration(milliseconds: f64) -> String {
    match milliseconds {
        value if value < 500.0 => format!("{value:.0} ms"),
        value if value < 10_000.0 && value % 1000.0 != 0.0 => format!("{:.1} s", value / 1000.0),
        value => format!("{:.0} s", value / 1000.0),
    }
}

/// The modes of kube-proxy are told from Beeline.
fn legend_name(name: String) -> String {
    if name == "Beeline" { name } else { format!("kube-proxy {name}") }
}

/// `100,000 services`
fn group_name(services: u32) -> String {
    let thousands = services / 1000;
    if thousands == 0 { format!("{services} services") } else { format!("{thousands},{:03} services", services % 1000) }
}

fn draw(plot: &ReadmePlot, file: &Path, values: PlotValues) -> Result<()> {
    let groups: Vec<String> = values.services.iter().copied().map(group_name).collect();
    let series: Vec<Series> = values
        .series
        .into_iter()
        .map(|series| Series { name: legend_name(series.name), values: series.values })
        .collect();
    let ReadmePlot { title, axis, label, .. } = *plot;
    let chart = BarChart { title, axis, start: 1.0, groups: &groups, series: &series, label };
    fs::write(file, chart.to_svg()).with_context(|| format!("cannot write {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_results_replace_only_their_own_values() -> Result<()> {
        let directory = tempfile::tempdir()?;
        let (results, images) = (directory.path().join("results"), directory.path().join("images"));
        fs::create_dir_all(&results)?;
        let row = |name: &str, value: f64| serde_json::json!({"name": name, "value": value, "unit": "us"});
        let rows = [
            row("connect/10/direct to the pod/p50", 20.0),
            row("connect/10/Beeline: service/p50", 24.0),
            row("connect/10/nftables: service/p50", 30.0),
            row("connect/10/iptables: service/p50", 30.0),
        ];
        fs::write(results.join("socket.json"), serde_json::to_string(&rows)?)?;
        update(&results, &images)?;
        let stored: PlotValues = serde_json::from_str(&fs::read_to_string(images.join("connect.json"))?)?;
        assert_eq!(stored.services, [10]);
        assert_eq!(stored.series[0], NamedValues { name: "Beeline".into(), values: vec![1.2] });
        assert!(fs::read_to_string(images.join("connect.svg"))?.contains("10 services"));
        assert!(!images.join("programming.svg").exists());
        Ok(())
    }

    /// Without results of a bench, the plots are drawn from the stored values.
    #[test]
    fn the_plots_in_the_tree_show_the_stored_values() -> Result<()> {
        let (stored, images) = (Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/images"), tempfile::tempdir()?);
        for plot in &PLOTS {
            let values = Path::new(plot.name).with_extension("json");
            fs::copy(stored.join(&values), images.path().join(&values))?;
        }
        update(&images.path().join("no-results"), images.path())?;
        for plot in &PLOTS {
            let picture = Path::new(plot.name).with_extension("svg");
            let [drawn, in_tree] = [images.path(), &stored].map(|dir| fs::read_to_string(dir.join(&picture)));
            assert!(drawn? == in_tree?, "docs/images/{} is outdated: beeline-bench plot", picture.display());
        }
        Ok(())
    }

    #[test]
    fn values_have_short_labels() {
        assert_eq!([1.0, 1.16, 63.0].map(factor), ["1x", "1.16x", "63x"]);
        assert_eq!([8.0, 900.0, 2500.0, 31_000.0].map(duration), ["8 ms", "0.9 s", "2.5 s", "31 s"]);
        assert_eq!([10, 1000, 100_000].map(group_name), ["10 services", "1,000 services", "100,000 services"]);
    }
}
