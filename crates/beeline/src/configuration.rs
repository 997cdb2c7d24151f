//! The configuration file of the agent as `join` and `leave` edit it. They change only the list `clusters`, line by
//! line, so that everything else that an administrator wrote, comments included, stays as it is.

use crate::options::{ClusterOptions, Options};
use anyhow::{Context, bail};
use beeline_model::rules::HostRole;
use std::path::Path;

const HEADER: &str =
    "# Written by `beeline join`. Any option of `beeline agent` may be added; see `man beeline-agent`.\n";

const ROLE: &str = "host-role: outside";

/// The options that `join` and `leave` use.
const USED_KEYS: [&str; 11] = [
    "api-server",
    "cgroup",
    "clusters",
    "host-role",
    "kubeconfig",
    "manifests",
    "pin-dir",
    "snapshot-dir",
    "socket",
    "state-dir",
    "views",
];

#[derive(Debug)]
pub struct Configuration {
    text: String,
    pub options: Options,
}

impl Configuration {
    /// A missing file is an empty configuration.
    pub fn read(path: &Path) -> anyhow::Result<Configuration> {
        let text = match std::fs::read_to_string(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            other => other.with_context(|| path.display().to_string())?,
        };
        Configuration::parse(text).with_context(|| path.display().to_string())
    }

    /// A wrong value of another option does not prevent `leave`: only the options that are used here must be correct.
    fn parse(text: String) -> anyhow::Result<Configuration> {
        let options =
            Options::parse(&text).or_else(|error| Options::parse_keys(&text, &USED_KEYS).map_err(|_| error))?;
        if options.manifests.is_some() || options.kubeconfig.is_some() || !options.api_server.is_empty() {
            bail!(
                "the file sets another source of objects (manifests, kubeconfig or api-server): remove that key, the joined \
                 cluster becomes the source"
            );
        }
        if !options.clusters.is_empty() {
            options.cluster_list()?;
        }
        Ok(Configuration { options, text })
    }

    /// Parses a text that is about to be written, and checks that an agent would start with it.
    fn parse_and_check(text: String) -> anyhow::Result<Configuration> {
        let new = Configuration::parse(text)?;
        if !new.options.clusters.is_empty() {
            Options::parse(&new.text)?.check()?;
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

    /// Whether the file contains no cluster and only lines that `join` wrote.
    pub fn is_bare(&self) -> bool {
        let is_generated = |line: &str| ["", ROLE, HEADER.trim_end()].contains(&line);
        self.clusters().is_empty() && self.text.starts_with(HEADER) && self.text.lines().all(is_generated)
    }

    /// The configuration with one more cluster at the end of the list.
    pub fn with(&self, name: &str, kubeconfig: &Path) -> anyhow::Result<Configuration> {
        let mut lines = self.lines();
        self.set_role(&mut lines)?;
        let block = ClusterBlock::find(&lines, self.clusters().len())?;
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
        Configuration::parse_and_check(lines.join("\n") + "\n")
            .context("the agent would not start with the new configuration")
    }

    pub fn without(&self, name: &str) -> anyhow::Result<Configuration> {
        let position = self.clusters().iter().position(|entry| entry.name == name);
        let Some(position) = position else { bail!("no cluster {name} in the configuration") };
        let mut lines = self.lines();
        let block = ClusterBlock::find(&lines, self.clusters().len())?;
        let Some(block) = block else { bail!("no list `clusters` in the configuration") };
        let end = block.items.get(position + 1).copied().unwrap_or(block.end);
        let start = if self.clusters().len() == 1 { block.head } else { block.items[position] };
        lines.drain(start..end);
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        Configuration::parse_and_check(text).with_context(|| {
            format!("the agent would not start without cluster {name}: first remove the line that refers to it")
        })
    }

    fn set_role(&self, lines: &mut Vec<String>) -> anyhow::Result<()> {
        match self.options.host_role {
            Some(role) if HostRole::from(role) == HostRole::Outside => {}
            Some(_) => {
                bail!(
                    "the file sets another host-role than outside, and only a host outside can join: remove that line"
                )
            }
            None => {
                let header = if self.text.is_empty() { HEADER } else { "" };
                lines.splice(0..0, header.lines().chain([ROLE]).map(str::to_owned));
            }
        }
        Ok(())
    }

    fn lines(&self) -> Vec<String> {
        self.text.lines().map(str::to_owned).collect()
    }
}

/// The lines of the list `clusters`.
struct ClusterBlock {
    /// The line of the key.
    head: usize,
    /// The line of each `-`.
    items: Vec<usize>,
    /// The first line after the last item.
    end: usize,
    indent: usize,
}

impl ClusterBlock {
    fn find(lines: &[String], count: usize) -> anyhow::Result<Option<ClusterBlock>> {
        let Some(head) = lines.iter().position(|line| line.starts_with("clusters:")) else {
            return if count == 0 { Ok(None) } else { unsupported() };
        };
        let rest = &lines[head + 1..];
        let next = rest.iter().position(|line| is_key(line)).unwrap_or(rest.len());
        // Blank lines and comments before the next key belong to that key.
        let inside = rest[..next].iter().rposition(|line| !is_blank_or_comment(line)).map_or(0, |last| last + 1);
        let end = head + 1 + inside;
        let dashes = |line: &usize| lines[*line].trim_start().starts_with("- ");
        let indent = (head + 1..end).filter(dashes).map(|line| indentation(&lines[line])).min().unwrap_or(2);
        let is_item = |line: &usize| indentation(&lines[*line]) == indent;
        let items: Vec<usize> = (head + 1..end).filter(dashes).filter(is_item).collect();
        if items.len() == count { Ok(Some(ClusterBlock { head, items, end, indent })) } else { unsupported() }
    }
}

fn unsupported<T>() -> anyhow::Result<T> {
    bail!(
        "the list `clusters` has a form that `beeline join` cannot edit: write it as a block, one `- name: NAME` per cluster"
    )
}

fn indentation(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

fn is_key(line: &str) -> bool {
    line.chars().next().is_some_and(|c| !c.is_whitespace() && c != '#' && c != '-')
}

fn is_blank_or_comment(line: &str) -> bool {
    line.trim().is_empty() || line.starts_with('#')
}

fn render(name: &str, kubeconfig: &Path, indent: usize) -> Vec<String> {
    let blank = " ".repeat(indent);
    let kubeconfig = scalar(&kubeconfig.display().to_string());
    vec![format!("{blank}- name: {}", scalar(name)), format!("{blank}  kubeconfig: {kubeconfig}")]
}

/// Quotes a text that YAML would not read as the same string.
fn scalar(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    let is_word = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/') && text.chars().all(is_plain);
    let is_reserved =
        ["true", "false", "yes", "no", "on", "off", "null", "y", "n"].contains(&text.to_ascii_lowercase().as_str());
    if is_word && !is_reserved { text.to_owned() } else { serde_json::Value::from(text).to_string() }
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
    fn adding_and_removing_clusters_restores_an_empty_file() {
        let one = with(&Configuration::parse(String::new()).unwrap(), "shop");
        assert_eq!(
            one.text(),
            format!("{HEADER}host-role: outside\nclusters:\n  - name: shop\n    kubeconfig: /k/shop\n")
        );
        let two = with(&one, "7");
        assert_eq!(names(&two), ["shop", "7"]);
        let one = two.without("shop").unwrap();
        assert_eq!(names(&one), ["7"]);
        assert!(!one.is_bare() && one.without("7").unwrap().is_bare());
        assert!(one.without("shop").is_err());
    }

    #[test]
    fn other_lines_and_comments_are_kept() {
        let text = "# ours\nevents: all\nhost-role: outside\nclusters:\n# the first\n- name: a # A\n  kubeconfig: /a\n\
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
    fn a_file_that_cannot_be_edited_safely_is_refused() {
        let inline = "host-role: outside\nclusters: [{name: a, kubeconfig: /a}]\n";
        let inline = Configuration::parse(inline.into()).unwrap();
        assert!(inline.with("b", Path::new("/b")).unwrap_err().to_string().contains("cannot edit"));
        assert!(inline.without("a").is_err());
        let node = Configuration::parse("host-role: node\n".into()).unwrap();
        assert!(node.with("a", Path::new("/a")).unwrap_err().to_string().contains("another host-role than outside"));
        for bad in ["manifests: /m\n", "kubeconfig: /k\n", "clusters: 7\n", "fish: 1\n", "clusters: [{name: a}]\n"] {
            assert!(Configuration::parse(bad.into()).is_err(), "{bad}");
        }
        let zone = Configuration::parse("host-role: outside\nzone: z\n".into()).unwrap();
        assert!(zone.with("a", Path::new("/a")).is_err(), "zone needs one cluster");
    }

    #[test]
    fn names_and_paths_are_quoted_where_needed() {
        for name in ["on", "7", "a-b", "1e3", "null", "0x1"] {
            assert_eq!(names(&with(&Configuration::parse(String::new()).unwrap(), name)), [name]);
        }
        let path = Path::new("/a b/\"c\": #d");
        let odd = Configuration::parse(String::new()).unwrap().with("a", path).unwrap();
        assert_eq!(odd.cluster("a").unwrap().kubeconfig.as_deref(), Some(path));
    }

    #[test]
    fn a_change_with_which_the_agent_would_not_start_is_refused() {
        let text = "host-role: outside\ndns-address: 127.0.0.55:53\ndns-view: [\"green=127.0.0.56:53\"]\nclusters:\n\
                    - name: blue\n  kubeconfig: /b\n- name: green\n  kubeconfig: /g\n  view: green\n";
        let file = Configuration::parse(text.into()).unwrap();
        let error = format!("{:#}", file.without("green").unwrap_err());
        assert!(error.contains("--dns-view green"), "{error}");
        assert_eq!(names(&file.without("blue").unwrap()), ["green"]);
        let views = text.replace("dns-view: [\"green=127.0.0.56:53\"]", "views: {/sys/fs/cgroup/b.slice: green}");
        assert!(Configuration::parse(views).unwrap().without("green").is_err());
        let one = "host-role: outside\ndns-address: 127.0.0.55:53\nclusters:\n- name: blue\n  kubeconfig: /b\n";
        for bad in ["events: fish\n", "snapshot-dir: relative\n", "sync-period: 0s\n", "dns-clients: [fish]\n"] {
            let file = Configuration::parse(format!("{one}{bad}")).unwrap();
            assert!(file.with("green", Path::new("/g")).is_err(), "{bad}");
            assert!(file.without("blue").is_ok(), "the last cluster can always be left: no agent starts afterwards");
        }
    }
}
