//! What a bench says: tables for people, rows for machines.

use std::{
    fmt::{self, Display},
    fs, iter,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use serde::Serialize;

/// One figure. `bar` is what was to be reached, `holds` whether it was; neither where nothing was promised.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    pub name: String,
    pub value: f64,
    pub unit: &'static str,
    pub bar: Option<f64>,
    pub holds: Option<bool>,
    /// How many samples it stands on, where that was counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n: Option<usize>,
}

impl Row {
    pub fn new(name: impl Into<String>, value: f64, unit: &'static str) -> Self {
        // What is beyond these digits is noise.
        let value = (value * 1000.0).round() / 1000.0;
        Self { name: name.into(), value, unit, bar: None, holds: None, n: None }
    }

    pub fn samples(self, n: usize) -> Self {
        Self { n: Some(n), ..self }
    }

    /// Promises that the value does not exceed `bar`.
    pub fn at_most(self, bar: f64) -> Self {
        Self { bar: Some(bar), holds: Some(self.value <= bar), ..self }
    }
}

/// Lines of cells, printed in columns: the first is text, the others are figures.
#[derive(Debug, Clone)]
pub struct Table {
    title: String,
    lines: Vec<Vec<String>>,
}

impl Table {
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

impl Display for Table {
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

/// Gathers the rows of one bench and writes them to `<directory>/<name>.json`.
pub struct Report {
    name: &'static str,
    directory: PathBuf,
    rows: Vec<Row>,
}

impl Report {
    pub fn new(name: &'static str, directory: &Path) -> Result<Self> {
        fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
        Ok(Self { name, directory: directory.to_owned(), rows: Vec::new() })
    }

    pub fn row(&mut self, row: Row) {
        self.rows.push(row);
    }

    pub fn rows(&self) -> &[Row] {
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

/// `1.23x`, or nothing where there is nothing to compare with.
pub fn ratio(value: f64, reference: f64) -> String {
    if reference > 0.0 { format!("{:.2}x", value / reference) } else { String::new() }
}

/// A difference with its sign.
pub fn over(value: f64, reference: f64) -> String {
    format!("{:+.0}", value - reference)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_holds_or_does_not() {
        assert_eq!(Row::new("a", 2.0, "ns").holds, None);
        assert_eq!(Row::new("a", 2.0, "ns").at_most(2.0).holds, Some(true));
        assert_eq!(Row::new("a", 2.0, "ns").at_most(1.9).holds, Some(false));
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new("t", &["name", "ns"]);
        table.line("a", ["1000".into()]);
        assert_eq!(table.to_string(), "\nt\n  name    ns\n  a     1000\n");
    }

    #[test]
    fn rows_are_written_as_a_list() -> Result<()> {
        let directory = std::env::temp_dir().join(format!("beeline-report-{}", std::process::id()));
        let mut report = Report::new("test", &directory)?;
        report.row(Row::new("a", 0.12345, "ms"));
        report.write()?;
        let rows: serde_json::Value = serde_json::from_str(&fs::read_to_string(report.file("json"))?)?;
        fs::remove_dir_all(&directory)?;
        let expected = serde_json::json!([{"name": "a", "value": 0.123, "unit": "ms", "bar": null, "holds": null}]);
        assert_eq!(rows, expected);
        Ok(())
    }
}
