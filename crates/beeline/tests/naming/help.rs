//! The options and arguments of all commands, read from the output of `--help`.

use std::fmt;
use std::process::Command;

/// Words with which the help of an option must not begin: the text should begin with the thing that the option sets, or
/// with a verb.
const BAD_STARTS: [&str; 24] = [
    "A", "After", "Also", "An", "At", "Before", "Every", "How", "If", "In", "May", "Only", "Or", "Outside", "The",
    "They", "This", "What", "When", "Where", "Which", "Who", "With", "Without",
];

/// Options with a value that have no default.
const WITHOUT_DEFAULT: [&str; 20] = [
    "api-server",
    "cgroup",
    "config",
    "count",
    "direct-pod-cidrs",
    "dns-clients",
    "dns-view",
    "events",
    "exclude-cgroup",
    "from",
    "kubeconfig",
    "manifests",
    "namespace",
    "node",
    "node-name",
    "pod",
    "policy",
    "service",
    "verdict",
    "view",
];

pub struct OptionHelp {
    command: String,
    /// With the dashes. The placeholder for an argument, such as `<CODE>`.
    name: String,
    /// The placeholder of the value. Empty for a flag and for an argument.
    value: String,
    text: String,
}

/// `agent --node-name`.
impl fmt::Display for OptionHelp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.command, self.name)
    }
}

impl OptionHelp {
    pub fn problems(&self) -> Vec<String> {
        let first = self.text.split([' ', ':', ',', '.']).next().unwrap_or_default();
        let has_default = self.text.contains("[default: ");
        let needs_default = !self.value.is_empty() && !WITHOUT_DEFAULT.contains(&self.name.trim_start_matches('-'));
        let problems = [
            (self.text.is_empty(), "has no help"),
            (!first.starts_with(|c: char| c.is_ascii_uppercase()), "does not begin with a capital letter"),
            (BAD_STARTS.contains(&first), "does not begin with a noun or a verb"),
            (needs_default && !has_default, "does not name its default"),
            (self.value == "DURATION" && !names_a_duration(&self.text), "shows no duration with its unit, such as 30s"),
            (self.value == "N" && !self.text.contains("umber of") && !self.text.contains("ercentage"), "names no unit"),
        ];
        let text = |problem: &str| format!("{self}: {problem}: {:?}", self.text);
        problems.into_iter().filter(|(is, _)| *is).map(|(_, problem)| text(problem)).collect()
    }
}

/// Whether a word is a number and a unit.
fn names_a_duration(text: &str) -> bool {
    text.split(|c: char| !c.is_ascii_alphanumeric()).any(|word| {
        let unit = word.trim_start_matches(|c: char| c.is_ascii_digit());
        unit != word && ["ms", "s", "m", "h"].contains(&unit)
    })
}

pub fn options() -> Vec<OptionHelp> {
    let mut commands: Vec<Vec<String>> = subcommands(&[]).into_iter().map(|name| vec![name]).collect();
    let nested: Vec<Vec<String>> = commands
        .iter()
        .flat_map(|command| subcommands(command).into_iter().map(|name| vec![command[0].clone(), name]))
        .collect();
    commands.extend(nested);
    commands.push(Vec::new());
    let options: Vec<OptionHelp> = commands.iter().flat_map(|command| options_of(command)).collect();
    assert!(options.len() > 100, "only {} options were found", options.len());
    options
}

fn help(command: &[String]) -> String {
    let beeline = env!("CARGO_BIN_EXE_beeline");
    let output = Command::new(beeline).args(command).arg("--help").output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

fn subcommands(command: &[String]) -> Vec<String> {
    let help = help(command);
    let list = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| line.starts_with("  "));
    let names = list.filter(|line| !line.starts_with("   ")).filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}

fn options_of(command: &[String]) -> Vec<OptionHelp> {
    let help = help(command);
    let mut options = section(&help, "Arguments:", command);
    options.extend(section(&help, "Options:", command));
    options
}

fn section(help: &str, title: &str, command: &[String]) -> Vec<OptionHelp> {
    let mut options: Vec<OptionHelp> = Vec::new();
    for line in help.lines().skip_while(|line| *line != title).skip(1) {
        if !line.is_empty() && !line.starts_with(' ') {
            break;
        }
        let text = line.trim();
        if text.starts_with(['-', '<', '[']) && line.find(text).is_some_and(|indent| indent <= 6) {
            options.push(parse(command, text));
        } else if let Some(option) = options.last_mut().filter(|_| !text.is_empty()) {
            option.text = format!("{} {text}", option.text).trim().to_owned();
        }
    }
    options
}

/// A line such as `-o, --output <FORMAT>  Output format [default: table]`.
fn parse(command: &[String], line: &str) -> OptionHelp {
    let (usage, text) = line.split_once("  ").unwrap_or((line, ""));
    let name = usage.split_whitespace().find(|word| word.starts_with("--")).unwrap_or(usage);
    let value = Some(usage)
        .filter(|usage| usage.starts_with('-'))
        .and_then(|usage| usage.split_once('<'))
        .map_or("", |(_, value)| value.split('>').next().unwrap_or_default());
    OptionHelp { command: command.join(" "), name: name.into(), value: value.into(), text: text.trim().into() }
}
