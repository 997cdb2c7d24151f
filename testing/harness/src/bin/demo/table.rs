//! The table of results, at most 100 columns wide.

use std::{fmt, io::IsTerminal};

use beeline_harness::{DialCheck, DialKind, DialResults};

const GREEN: &str = "32";
const YELLOW: &str = "33";
const RED: &str = "31";
const BOLD: &str = "1";

#[derive(Default)]
pub struct ResultTable {
    lines: Vec<Line>,
}

enum Line {
    Row { columns: [String; 4], mismatch: Option<String> },
    Event { text: String, is_expected: bool },
}

impl Line {
    fn is_failure(&self) -> bool {
        matches!(self, Line::Row { mismatch: Some(_), .. } | Line::Event { is_expected: false, .. })
    }
}

impl ResultTable {
    pub fn rows(&self) -> usize {
        self.lines.iter().filter(|line| matches!(line, Line::Row { .. })).count()
    }

    pub fn failures(&self) -> usize {
        self.lines.iter().filter(|line| line.is_failure()).count()
    }

    pub fn add_row(&mut self, kind: &str, check: &DialCheck, results: &DialResults) {
        let columns = [check.to.to_string(), protocol(check.kind).to_owned(), kind.to_owned(), results.summary()];
        self.lines.push(Line::Row { columns, mismatch: check.mismatch(results) });
    }

    /// Adds a line about something that happened between two rows.
    pub fn add_event(&mut self, text: &str, is_expected: bool) {
        self.lines.push(Line::Event { text: text.to_owned(), is_expected });
    }
}

impl fmt::Display for ResultTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let colour = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        let paint = |code: &str, text: &str| match colour {
            true => format!("\x1b[{code}m{text}\x1b[0m"),
            false => text.to_owned(),
        };
        let head = ["CONNECT TO", "", "KIND OF ADDRESS", "ANSWERED BY, NUMBER OF ANSWERS"].map(str::to_owned);
        writeln!(f, "  {}", paint(BOLD, &columns(&head)))?;
        for line in &self.lines {
            match line {
                Line::Row { columns: cells, mismatch: None } => {
                    writeln!(f, "{} {}", paint(GREEN, "✓"), columns(cells))?
                }
                Line::Row { columns: cells, mismatch: Some(mismatch) } => {
                    writeln!(f, "{} {}\n  {}", paint(RED, "✗"), columns(cells), paint(RED, mismatch))?;
                }
                Line::Event { text, is_expected } => {
                    let (code, mark) = if *is_expected { (YELLOW, "→") } else { (RED, "✗") };
                    writeln!(f, "{}", paint(code, &format!("{mark} {text}")))?;
                }
            }
        }
        writeln!(
            f,
            "\n  ECONNREFUSED means that the connection was refused at once, without a packet. In every other row"
        )?;
        writeln!(f, "  the client's socket also reported the address that it connected to as its peer (getpeername).")
    }
}

fn columns([address, protocol, kind, servers]: &[String; 4]) -> String {
    format!("{address:<23} {protocol:<4} {kind:<32} {servers}").trim_end().to_owned()
}

fn protocol(kind: DialKind) -> &'static str {
    match kind {
        DialKind::UdpConnected | DialKind::UdpSendTo => "UDP",
        _ => "HTTP",
    }
}
