//! Output of the commands: aligned columns for people, JSON and YAML for programs. Text of processes and cluster objects may
//! contain control characters, which a terminal would obey: whatever is printed passes [`escape`]. Commands print by this
//! module only; `tests/architecture.rs` checks that.

use crate::args::OutputFormat;
use serde::Serialize;
use std::borrow::Cow;
use std::fmt::Display;
use std::io::Write;

/// The width of tables where standard output is not a terminal.
const DEFAULT_WIDTH: usize = 100;

/// Aligned columns with two blanks between them.
pub fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = header.iter().map(|h| h.chars().count()).collect();
    let rows: Vec<Vec<Cow<str>>> = rows.iter().map(|row| row.iter().map(|cell| escape(cell)).collect()).collect();
    for row in &rows {
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
    all.extend(rows.iter().map(|row| line(row.iter().map(|cell| &**cell).collect())));
    all
}

/// One line for each name and value; the values begin in the same column.
pub fn fields(width: usize, fields: &[(&str, String)]) -> String {
    fields.iter().map(|(name, value)| format!("{name:<width$} {}\n", escape(value))).collect()
}

/// Whether a terminal acts on the character, or shows the text around it in another order or on another line.
fn is_unprintable(c: char) -> bool {
    let reorders = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || reorders || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}')
}

/// The text in one line, with control characters written as `\n` or `\u{1b}`.
pub fn escape(text: &str) -> Cow<'_, str> {
    if !text.contains(is_unprintable) {
        return text.into();
    }
    let mut escaped = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if is_unprintable(c) { escaped.extend(c.escape_default()) } else { escaped.push(c) }
    }
    escaped.into()
}

/// The text with its lines, each of them escaped.
pub fn escape_lines(text: &str) -> String {
    text.split('\n').map(escape).collect::<Vec<_>>().join("\n")
}

/// JSON has no unescaped control characters but DEL and U+0080 to U+009F, some of which terminals obey too. They occur only in
/// strings, so an escape does not change the value.
pub fn escape_json(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if c != '\n' && is_unprintable(c) {
            escaped.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            escaped.push(c);
        }
    }
    escaped
}

/// Prints lines to standard output. A pipe that was closed by its reader (`| head`) is not an error.
pub fn out(text: impl Display) {
    let _ = writeln!(std::io::stdout(), "{}", escape_lines(&text.to_string()));
}

/// Prints lines to standard error.
pub fn err(text: impl Display) {
    let _ = writeln!(std::io::stderr(), "{}", escape_lines(&text.to_string()));
}

/// Prints `value` in the chosen format; `table` renders it for people.
pub fn write<T: Serialize>(output: OutputFormat, value: &T, table: impl FnOnce() -> String) -> anyhow::Result<()> {
    let text = match output {
        OutputFormat::Table => escape_lines(&table()),
        OutputFormat::Json => escape_json(&serde_json::to_string_pretty(value)?) + "\n",
        // The YAML library escapes control characters itself.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Clears the screen, sets the title of the window, and hides the rest of the line.
    const ATTACK: &str = "x\u{1b}[2J\u{1b}]0;owned\u{7}\u{9b}8m\r\ny\u{202e}z\u{7f}";
    const HARMLESS: &str = r"x\u{1b}[2J\u{1b}]0;owned\u{7}\u{9b}8m\r\ny\u{202e}z\u{7f}";

    #[test]
    fn control_characters_are_visible_and_other_text_is_unchanged() {
        assert_eq!(escape(ATTACK), HARMLESS);
        assert!(matches!(escape("straße 価格 \\u{1b}"), Cow::Borrowed("straße 価格 \\u{1b}")));
        assert_eq!(escape_lines("a\nb\u{1b}"), "a\nb\\u{1b}");
    }

    #[test]
    fn a_cell_or_a_field_cannot_begin_a_line_or_move_a_column() {
        let text = table(&["A", "B"], &[vec![ATTACK.into(), "b".into()], vec!["a".into(), "b".into()]]);
        assert_eq!(text.lines().count(), 3, "{text:?}");
        assert!(text.contains(&format!("{HARMLESS}  b\n")), "{text:?}");
        assert_eq!(text.lines().nth(2).unwrap().find('b'), Some(HARMLESS.len() + 2));
        assert_eq!(fields(4, &[("name", ATTACK.into())]), format!("name {HARMLESS}\n"));
    }

    #[test]
    fn escaped_json_and_yaml_have_the_same_value() {
        let json = escape_json(&serde_json::to_string_pretty(&[ATTACK]).unwrap());
        assert!(!json.replace('\n', "").contains(is_unprintable), "{json:?}");
        assert_eq!(serde_json::from_str::<[String; 1]>(&json).unwrap()[0], ATTACK);
        let yaml = serde_saphyr::to_string(&[ATTACK]).unwrap();
        assert!(!yaml.contains(|c: char| c != '\n' && c.is_control()), "{yaml:?}");
    }
}
