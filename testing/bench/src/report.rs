//! Results of a bench: text tables, and rows for the JSON file.

use std::{
    fmt::{self, Display},
    fs, iter,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use serde::Serialize;

/// One measured value. `met` tells whether the value meets `limit`; both are null without a limit.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReportRow {
    pub name: String,
    pub value: f64,
    pub unit: &'static str,
    pub limit: Option<f64>,
    pub met: Option<bool>,
    /// Number of samples, where it was counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n: Option<usize>,
}

impl ReportRow {
    pub fn new(name: impl Into<String>, value: f64, unit: &'static str) -> Self {
        // More digits are noise.
        let value = (value * 1000.0).round() / 1000.0;
        Self { name: name.into(), value, unit, limit: None, met: None, n: None }
    }

    pub fn samples(self, n: usize) -> Self {
        Self { n: Some(n), ..self }
    }

    /// Sets the limit of the value.
    pub fn at_most(self, limit: f64) -> Self {
        Self { limit: Some(limit), met: Some(self.value <= limit), ..self }
    }
}

/// A table whose first column is text and whose other columns are right-aligned figures.
#[derive(Debug, Clone)]
pub struct TextTable {
    title: String,
    lines: Vec<Vec<String>>,
}

impl TextTable {
    pub fn new(title: impl Into<String>, columns: &[&str]) -> Self {
        Self { title: title.into(), lines: vec![columns.iter().map(ToString::to_string).collect()] }
    }

    pub fn line(&mut self, first: &str, figures: impl IntoIterator<Item = String>) {
        self.lines.push(iter::once(first.to_owned()).chain(figures).collect());
    }

    fn width(&self, column: usize) -> usize {
        let cells = self.lines.iter().filter_map(|line| line.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    }
}

impl Display for TextTable {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "\n{}", self.title)?;
        for line in &self.lines {
            for (column, cell) in line.iter().enumerate() {
                let width = self.width(column);
                match column {
                    0 => write!(out, "  {cell:<width$}")?,
                    _ => write!(out, "  {cell:>width$}")?,
                }
            }
            writeln!(out)?;
        }
        Ok(())
    }
}

/// Collects the rows of one bench and writes them to `<directory>/<name>.json`.
pub struct BenchReport {
    name: &'static str,
    directory: PathBuf,
    rows: Vec<ReportRow>,
}

impl BenchReport {
    pub fn new(name: &'static str, directory: &Path) -> Result<Self> {
        fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
        Ok(Self { name, directory: directory.to_owned(), rows: Vec::new() })
    }

    pub fn row(&mut self, row: ReportRow) {
        self.rows.push(row);
    }

    pub fn rows(&self) -> &[ReportRow] {
        &self.rows
    }

    pub fn file(&self, extension: &str) -> PathBuf {
        self.directory.join(self.name).with_extension(extension)
    }

    pub fn write(&self) -> Result<()> {
        let file = self.file("json");
        fs::write(&file, serde_json::to_string_pretty(&self.rows)? + "\n")
            .with_context(|| format!("cannot write {}", file.display()))
    }
}

/// `1.23x`, or an empty string if the reference is 0.
pub fn ratio(value: f64, reference: f64) -> String {
    if reference > 0.0 { format!("{:.2}x", value / reference) } else { String::new() }
}

/// The difference with its sign.
pub fn over(value: f64, reference: f64) -> String {
    format!("{:+.0}", value - reference)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_met_or_exceeded() {
        assert_eq!(ReportRow::new("a", 2.0, "ns").met, None);
        assert_eq!(ReportRow::new("a", 2.0, "ns").at_most(2.0).met, Some(true));
        assert_eq!(ReportRow::new("a", 2.0, "ns").at_most(1.9).met, Some(false));
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = TextTable::new("t", &["name", "ns"]);
        table.line("a", ["1000".into()]);
        assert_eq!(table.to_string(), "\nt\n  name    ns\n  a     1000\n");
    }

    #[test]
    fn rows_are_written_as_a_json_list() -> Result<()> {
        let directory = std::env::temp_dir().join(format!("beeline-report-{}", std::process::id()));
        let mut report = BenchReport::new("test", &directory)?;
        report.row(ReportRow::new("a", 0.12345, "ms"));
        report.write()?;
        let rows: serde_json::Value = serde_json::from_str(&fs::read_to_string(report.file("json"))?)?;
        fs::remove_dir_all(&directory)?;
        let expected = serde_json::json!([{"name": "a", "value": 0.123, "unit": "ms", "limit": null, "met": null}]);
        assert_eq!(rows, expected);
        Ok(())
    }
}
