//! The agent's configuration file as `join` and `leave` change it: only the list `clusters:`, line by line, so that what an
//! administrator wrote beside it, comments included, stays as it is.

use crate::options::{ClusterOptions, Options};
use anyhow::{Context, bail};
use std::path::Path;

const HEAD: &str =
    "# Written by `beeline join`. Any option of `beeline agent` may be added; `man beeline-agent` tells of each.\n";

const OUTSIDE: &str = "stand: outside";

#[derive(Debug)]
pub struct Configuration {
    text: String,
    pub options: Options,
}

impl Configuration {
    /// A file that is not there yet is an empty one.
    pub fn read(path: &Path) -> anyhow::Result<Configuration> {
        let text = match std::fs::read_to_string(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            other => other.with_context(|| path.display().to_string())?,
        };
        Configuration::parse(text).with_context(|| path.display().to_string())
    }

    fn parse(text: String) -> anyhow::Result<Configuration> {
        let options = Options::parse(&text)?;
        if options.manifests.is_some() || options.kubeconfig.is_some() || !options.api_server.is_empty() {
            bail!(
                "it names another source of objects (manifests, kubeconfig or api-server): take it out, the cluster that is joined becomes the source"
            );
        }
        if !options.clusters.is_empty() {
            options.listing()?;
        }
        Ok(Configuration { options, text })
    }

    /// What is to be written: with anything else the agent would not start after the next boot.
    fn checked(text: String) -> anyhow::Result<Configuration> {
        let new = Configuration::parse(text)?;
        if !new.options.clusters.is_empty() {
            new.options.check()?;
        }
        Ok(new)
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    pub fn clusters(&self) -> &[ClusterOptions] {
        &self.options.clusters
    }

    pub fn cluster(&self, name: &str) -> Option<&ClusterOptions> {
        self.clusters().iter().find(|cluster| cluster.name == name)
    }

    /// Nothing stands in it that `join` did not write.
    pub fn is_bare(&self) -> bool {
        let own = |line: &str| ["", OUTSIDE, HEAD.trim_end()].contains(&line);
        self.clusters().is_empty() && self.text.starts_with(HEAD) && self.text.lines().all(own)
    }

    /// One cluster more, the last.
    pub fn with(&self, name: &str, kubeconfig: &Path) -> anyhow::Result<Configuration> {
        let mut lines = self.lines();
        self.stand_outside(&mut lines)?;
        let block = Block::find(&lines, self.clusters().len())?;
        let indent = block.as_ref().map_or(2, |block| block.indent);
        let new = render(name, kubeconfig, indent);
        match block {
            Some(block) => {
                lines[block.head] = lines[block.head].replacen("[]", "", 1).trim_end().to_owned();
                lines.splice(block.end..block.end, new);
            }
            None => {
                lines.push("clusters:".into());
                lines.extend(new);
            }
        }
        Configuration::checked(lines.join("\n") + "\n").context("with this the agent would not start")
    }

    pub fn without(&self, name: &str) -> anyhow::Result<Configuration> {
        let Some(at) = self.clusters().iter().position(|entry| entry.name == name) else { bail!("no cluster {name}") };
        let mut lines = self.lines();
        let Some(block) = Block::find(&lines, self.clusters().len())? else { bail!("no list of clusters") };
        let end = block.items.get(at + 1).copied().unwrap_or(block.end);
        let start = if self.clusters().len() == 1 { block.head } else { block.items[at] };
        lines.drain(start..end);
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        Configuration::checked(text).with_context(|| {
            format!(
                "without {name} the agent would not start: take the line that names it out of the configuration first"
            )
        })
    }

    fn stand_outside(&self, lines: &mut Vec<String>) -> anyhow::Result<()> {
        match self.options.stand.as_deref() {
            Some("outside") => {}
            Some(other) => bail!("it says `stand: {other}`, and only a host outside joins: take that line out"),
            None => {
                let head = if self.text.is_empty() { HEAD } else { "" };
                lines.splice(0..0, head.lines().chain([OUTSIDE]).map(str::to_owned));
            }
        }
        Ok(())
    }

    fn lines(&self) -> Vec<String> {
        self.text.lines().map(str::to_owned).collect()
    }
}

/// Where the list stands, by line.
struct Block {
    head: usize,
    /// The line of each `-`.
    items: Vec<usize>,
    /// The first line after the last item.
    end: usize,
    indent: usize,
}

impl Block {
    fn find(lines: &[String], count: usize) -> anyhow::Result<Option<Block>> {
        let Some(head) = lines.iter().position(|line| line.starts_with("clusters:")) else {
            return if count == 0 { Ok(None) } else { unreadable() };
        };
        let rest = &lines[head + 1..];
        let next = rest.iter().position(|line| is_key(line)).unwrap_or(rest.len());
        // What stands before the next key at the edge belongs to that one.
        let inside = rest[..next].iter().rposition(|line| !is_edge(line)).map_or(0, |last| last + 1);
        let end = head + 1 + inside;
        let dashes = |line: &usize| lines[*line].trim_start().starts_with("- ");
        let indent = (head + 1..end).filter(dashes).map(|line| depth(&lines[line])).min().unwrap_or(2);
        let items: Vec<usize> = (head + 1..end).filter(dashes).filter(|line| depth(&lines[*line]) == indent).collect();
        if items.len() == count { Ok(Some(Block { head, items, end, indent })) } else { unreadable() }
    }
}

fn unreadable<T>() -> anyhow::Result<T> {
    bail!(
        "the list `clusters:` is written in another way than `beeline join` writes it: one `- name: NAME` line a cluster"
    )
}

fn depth(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

fn is_key(line: &str) -> bool {
    line.chars().next().is_some_and(|c| !c.is_whitespace() && c != '#' && c != '-')
}

fn is_edge(line: &str) -> bool {
    line.trim().is_empty() || line.starts_with('#')
}

fn render(name: &str, kubeconfig: &Path, indent: usize) -> Vec<String> {
    let blank = " ".repeat(indent);
    let kubeconfig = scalar(&kubeconfig.display().to_string());
    vec![format!("{blank}- name: {}", scalar(name)), format!("{blank}  kubeconfig: {kubeconfig}")]
}

/// As YAML reads it as text, whatever it looks like.
fn scalar(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    let word = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/') && text.chars().all(plain);
    let taken =
        ["true", "false", "yes", "no", "on", "off", "null", "y", "n"].contains(&text.to_ascii_lowercase().as_str());
    if word && !taken { text.to_owned() } else { serde_json::Value::from(text).to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(configuration: &Configuration) -> Vec<&str> {
        configuration.clusters().iter().map(|cluster| cluster.name.as_str()).collect()
    }

    fn with(configuration: &Configuration, name: &str) -> Configuration {
        configuration.with(name, Path::new(&format!("/k/{name}"))).unwrap()
    }

    #[test]
    fn begins_with_nothing_and_ends_with_nothing() {
        let one = with(&Configuration::parse(String::new()).unwrap(), "shop");
        assert_eq!(one.text(), format!("{HEAD}stand: outside\nclusters:\n  - name: shop\n    kubeconfig: /k/shop\n"));
        let two = with(&one, "7");
        assert_eq!(names(&two), ["shop", "7"]);
        let one = two.without("shop").unwrap();
        assert_eq!(names(&one), ["7"]);
        assert!(!one.is_bare() && one.without("7").unwrap().is_bare());
        assert!(one.without("shop").is_err());
    }

    #[test]
    fn what_else_stands_there_stays() {
        let text = "# ours\nevents: all\nstand: outside\nclusters:\n# the first\n- name: a # A\n  kubeconfig: /a\n\
                    - {name: b, kubeconfig: /b, view: v}\n\n# sizes\nmax-services: 64\n";
        let file = Configuration::parse(text.into()).unwrap();
        assert_eq!(names(&file), ["a", "b"]);
        let more = with(&file, "c");
        assert_eq!(more.text(), text.replace("\n\n# sizes", "\n- name: c\n  kubeconfig: /k/c\n\n# sizes"));
        assert_eq!(more.without("c").unwrap().text(), text);
        assert_eq!(names(&more.without("a").unwrap()), ["b", "c"]);
        assert!(!more.without("a").unwrap().text().contains("# A"));
        let empty = Configuration::parse("clusters: []\nevents: all\n".into()).unwrap();
        assert_eq!(names(&with(&empty, "a")), ["a"]);
    }

    #[test]
    fn what_cannot_be_changed_safely_is_left_alone() {
        let inline = "stand: outside\nclusters: [{name: a, kubeconfig: /a}]\n";
        let inline = Configuration::parse(inline.into()).unwrap();
        assert!(inline.with("b", Path::new("/b")).unwrap_err().to_string().contains("another way"));
        assert!(inline.without("a").is_err());
        let node = Configuration::parse("stand: node\n".into()).unwrap();
        assert!(node.with("a", Path::new("/a")).unwrap_err().to_string().contains("stand: node"));
        for bad in ["manifests: /m\n", "kubeconfig: /k\n", "clusters: 7\n", "fish: 1\n", "clusters: [{name: a}]\n"] {
            assert!(Configuration::parse(bad.into()).is_err(), "{bad}");
        }
        let zone = Configuration::parse("stand: outside\nzone: z\n".into()).unwrap();
        assert!(zone.with("a", Path::new("/a")).is_err(), "the agent would not take it");
    }

    #[test]
    fn names_are_read_as_they_were_written() {
        for name in ["on", "7", "a-b", "1e3", "null", "0x1"] {
            assert_eq!(names(&with(&Configuration::parse(String::new()).unwrap(), name)), [name]);
        }
        let path = Path::new("/a b/\"c\": #d");
        let odd = Configuration::parse(String::new()).unwrap().with("a", path).unwrap();
        assert_eq!(odd.cluster("a").unwrap().kubeconfig.as_deref(), Some(path));
    }

    /// What the agent would not start with is not written: it would serve nobody after the next boot.
    #[test]
    fn what_the_agent_would_not_start_with_is_refused() {
        let text = "stand: outside\ndns-address: 127.0.0.55:53\ndns-view: [\"green=127.0.0.56:53\"]\nclusters:\n\
                    - name: blue\n  kubeconfig: /b\n- name: green\n  kubeconfig: /g\n  view: green\n";
        let file = Configuration::parse(text.into()).unwrap();
        let why = format!("{:#}", file.without("green").unwrap_err());
        assert!(why.contains("--dns-view green"), "{why}");
        assert_eq!(names(&file.without("blue").unwrap()), ["green"]);
        let views = text.replace("dns-view: [\"green=127.0.0.56:53\"]", "views: {/sys/fs/cgroup/b.slice: green}");
        assert!(Configuration::parse(views).unwrap().without("green").is_err());
        let one = "stand: outside\ndns-address: 127.0.0.55:53\nclusters:\n- name: blue\n  kubeconfig: /b\n";
        for bad in ["events: fish\n", "snapshot-dir: relative\n", "sync-period: 0s\n", "dns-clients: [fish]\n"] {
            let file = Configuration::parse(format!("{one}{bad}")).unwrap();
            assert!(file.with("green", Path::new("/g")).is_err(), "{bad}");
            assert!(file.without("blue").is_ok(), "leaving is always possible: no agent starts afterwards");
        }
    }
}
