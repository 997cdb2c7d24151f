//! Output of the commands: aligned columns for people, JSON and YAML for programs.

use crate::args::OutputFormat;
use serde::Serialize;

/// The width of tables where standard output is not a terminal.
const DEFAULT_WIDTH: usize = 100;

/// Aligned columns with two blanks between them.
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

/// Prints `value` in the chosen format; `table` renders it for people.
pub fn write<T: Serialize>(output: OutputFormat, value: &T, table: impl FnOnce() -> String) -> anyhow::Result<()> {
    use std::io::Write;
    let text = match output {
        OutputFormat::Table => table(),
        OutputFormat::Json => serde_json::to_string_pretty(value)? + "\n",
        OutputFormat::Yaml => serde_saphyr::to_string(value)?,
    };
    // A pipe that was closed by its reader (`| head`) is not an error.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(())
}

/// The number of columns that a table may have.
pub fn width() -> usize {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok();
    size.map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0).unwrap_or(DEFAULT_WIDTH)
}

pub fn or_dash(text: Option<impl ToString>) -> String {
    text.map_or_else(|| "-".into(), |t| t.to_string())
}

/// `1 backend`, `2 backends`.
pub fn plural(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}
