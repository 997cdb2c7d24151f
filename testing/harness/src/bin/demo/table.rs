//! The one table. Rows appear as they are known, so the columns are fixed.

use std::io::IsTerminal;

use beeline_harness::{Kind, Seen, Trial};

pub struct Table {
    colour: bool,
    rows: usize,
    faults: usize,
}

impl Table {
    pub fn begin() -> Self {
        let colour = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        let table = Table { colour, rows: 0, faults: 0 };
        let head = line(["DIALLED", "BY", "KIND", "BECAME, HOW OFTEN", "GETPEERNAME SAID"]);
        println!("  {}", table.paint("1", &head));
        table
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    pub fn faults(&self) -> usize {
        self.faults
    }

    pub fn row(&mut self, kind: &str, trial: &Trial, seen: &Seen) {
        let fault = trial.fault(seen);
        let mark = if fault.is_none() { self.paint("32", "✓") } else { self.paint("31", "✗") };
        println!(
            "{mark} {}",
            line([&trial.to.to_string(), by(trial.kind), kind, &seen.became(), &shown(trial.kind, seen)])
        );
        if let Some(fault) = &fault {
            println!("  {}", self.paint("31", fault));
        }
        self.rows += 1;
        self.faults += usize::from(fault.is_some());
    }

    /// Something happens between two rows.
    pub fn turn(&mut self, text: &str, is_so: bool) {
        let code = if is_so { "33" } else { "31" };
        println!("{}", self.paint(code, &format!("{} {text}", if is_so { "│" } else { "✗" })));
        self.faults += usize::from(!is_so);
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

fn line([dialled, by, kind, became, peer]: [&str; 5]) -> String {
    format!("{dialled:<22}  {by:<10}  {kind:<20}  {became:<30}  {peer}").trim_end().to_owned()
}

fn by(kind: Kind) -> &'static str {
    match kind {
        Kind::UdpConnected => "UDP",
        Kind::UdpSendTo => "UDP sendto",
        _ => "HTTP",
    }
}

fn shown(kind: Kind, seen: &Seen) -> String {
    let peers: Vec<String> = seen.peers.iter().map(ToString::to_string).collect();
    match kind {
        _ if peers.is_empty() => "-".into(),
        Kind::UdpSendTo => format!("{} (recvfrom)", peers.join(" ")),
        _ => peers.join(" "),
    }
}
