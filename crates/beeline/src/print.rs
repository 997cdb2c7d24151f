//! Printing: aligned columns for people, JSON and YAML for programs.

use crate::args::Output;
use serde::Serialize;

/// Columns as wide as their widest cell; two blanks between.
pub fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = header.iter().map(|h| h.chars().count()).collect();
    for row in rows {
        for (i, cell) in row.iter().enumerate() {
            widths[i] = widths[i].max(cell.chars().count());
        }
    }
    let line = |cells: Vec<&str>| {
        let mut text = String::new();
        for (i, cell) in cells.iter().enumerate() {
            let pad = if i + 1 == cells.len() { 0 } else { widths[i] + 2 - cell.chars().count() };
            text.push_str(cell);
            text.extend(std::iter::repeat_n(' ', pad));
        }
        text.trim_end().to_owned() + "\n"
    };
    let mut all = line(header.to_vec());
    all.extend(rows.iter().map(|row| line(row.iter().map(String::as_str).collect())));
    all
}

/// The same rows in the form asked for.
pub fn show<T: Serialize>(output: Output, value: &T, table: impl FnOnce() -> String) -> anyhow::Result<()> {
    use std::io::Write;
    let text = match output {
        Output::Table => table(),
        Output::Json => serde_json::to_string_pretty(value)? + "\n",
        Output::Yaml => serde_saphyr::to_string(value)?,
    };
    // A reader that has seen enough (head) is no error.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(())
}

pub fn dash(text: Option<impl ToString>) -> String {
    text.map_or_else(|| "-".into(), |t| t.to_string())
}
