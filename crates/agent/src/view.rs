//! Which cgroups see which view: cgroups that the configuration names, pods that ask for a view by annotation, and the
//! cgroups that the agent creates for `beeline run --view`. The name of such a cgroup contains its view, so that the next
//! agent can adopt it.
//!
//! All of them are created in one parent cgroup. At the root of the hierarchy only a process with CAP_DAC_OVERRIDE may
//! create a cgroup, and the agent does not have that capability: its supervisor creates the parent.

use anyhow::Context;
use beeline_datapath::cgroup;
use beeline_datapath::control::{CgroupRule, LEVELS};
use beeline_model::Name;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The parent of the created cgroups, below the agent's cgroup. Each child is named `VIEW-NUMBER`.
const PARENT: &str = "beeline-views";
/// The time within which a command enters the cgroup that was created for it. Afterwards the empty cgroup is removed.
const ENTER_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug)]
struct ViewCgroup {
    path: PathBuf,
    view: Name,
    created: Instant,
    /// Whether a process was ever seen in it.
    used: bool,
}

/// The cgroups that were created for `beeline run --view`.
#[derive(Debug)]
pub struct ViewCgroups {
    parent: PathBuf,
    all: Vec<ViewCgroup>,
}

impl ViewCgroups {
    /// Starts with the cgroups that an earlier agent left behind.
    pub fn adopt(root: &Path) -> ViewCgroups {
        let parent = root.join(PARENT);
        let entries = std::fs::read_dir(&parent).into_iter().flatten().flatten();
        let existing = entries.filter_map(|entry| {
            let view = view_of(entry.file_name().to_str()?).filter(|_| entry.path().is_dir())?;
            Some(ViewCgroup { path: entry.path(), view, created: Instant::now(), used: true })
        });
        let all = existing.collect();
        ViewCgroups { parent, all }
    }

    pub fn create(&mut self, view: &Name) -> anyhow::Result<PathBuf> {
        if !self.parent.is_dir() {
            let hint =
                || format!("cannot create the parent cgroup of views; run as root: mkdir {}", self.parent.display());
            std::fs::create_dir(&self.parent).with_context(hint)?;
        }
        let mut number = 0u32;
        loop {
            let path = self.parent.join(format!("{view}-{number}"));
            match std::fs::create_dir(&path) {
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists && number < u32::MAX => number += 1,
                created => {
                    created.with_context(|| format!("cannot create the cgroup {}", path.display()))?;
                    let (view, created) = (view.clone(), Instant::now());
                    self.all.push(ViewCgroup { path: path.clone(), view, created, used: false });
                    return Ok(path);
                }
            }
        }
    }

    pub fn remove(&mut self, path: &Path) {
        let _ = std::fs::remove_dir(path);
        self.all.retain(|cgroup| cgroup.path != path);
    }

    /// Removes the cgroups whose processes have ended. Returns whether there were any.
    pub fn remove_empty(&mut self) -> bool {
        let before = self.all.len();
        self.all.retain_mut(|cgroup| {
            !cgroup.is_abandoned() || std::fs::remove_dir(&cgroup.path).is_err() && cgroup.path.exists()
        });
        self.all.len() != before
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Path, &Name)> {
        self.all.iter().map(|cgroup| (cgroup.path.as_path(), &cgroup.view))
    }
}

/// Removes the empty cgroups of an agent that has ended, and their parent if it is empty then.
pub fn remove_view_cgroups(root: &Path) {
    ViewCgroups::adopt(root).remove_empty();
    let _ = std::fs::remove_dir(root.join(PARENT));
}

impl ViewCgroup {
    fn is_abandoned(&mut self) -> bool {
        let events = std::fs::read_to_string(self.path.join("cgroup.events")).unwrap_or_default();
        let populated = events.lines().any(|line| line == "populated 1");
        self.used |= populated;
        !populated && (self.used || self.created.elapsed() >= ENTER_TIMEOUT)
    }
}

fn view_of(name: &str) -> Option<Name> {
    let (view, number) = name.rsplit_once('-')?;
    (!view.is_empty() && number.parse::<u32>().is_ok()).then(|| view.into())
}

/// Why the cgroup at this path cannot have a rule. `None` means that it can.
pub fn rule_error(path: &Path) -> Option<String> {
    match cgroup::level(path) {
        _ if !path.exists() => Some("does not exist".into()),
        Ok(level) if level < LEVELS => None,
        Ok(level) => Some(format!("is {level} levels deep; a rule needs at most {}", LEVELS - 1)),
        Err(error) => Some(format!("is not a cgroup2 directory: {error}")),
    }
}

/// The rules of the cgroups that exist and can have one, with the cgroup's id. If several entries name one cgroup, their
/// rules are merged into one.
pub fn merge_rules(wanted: impl Iterator<Item = (PathBuf, CgroupRule)>) -> Vec<(PathBuf, u64, CgroupRule)> {
    let mut all: Vec<(PathBuf, u64, CgroupRule)> = Vec::new();
    for (path, rule) in wanted {
        let Some(id) = cgroup::id(&path).ok().filter(|_| rule_error(&path).is_none()) else { continue };
        match all.iter_mut().find(|(_, other, _)| *other == id) {
            Some((_, _, merged)) => {
                merged.excluded |= rule.excluded;
                merged.view = if rule.view == 0 { merged.view } else { rule.view };
            }
            None => all.push((path, id, rule)),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_agent_reads_the_view_from_the_name_of_the_cgroup() {
        let dir = tempfile::tempdir().unwrap();
        let mut cgroups = ViewCgroups::adopt(dir.path());
        let (first, second) = (cgroups.create(&"edge-1".into()).unwrap(), cgroups.create(&"edge-1".into()).unwrap());
        assert!(first != second && first.is_dir() && second.is_dir());
        std::fs::create_dir(dir.path().join(PARENT).join("none")).unwrap();
        let next = ViewCgroups::adopt(dir.path());
        assert_eq!(next.iter().map(|(_, view)| &**view).collect::<Vec<_>>(), ["edge-1", "edge-1"]);
        assert!(!cgroups.remove_empty(), "the command may still enter its cgroup");
        cgroups.remove(&first);
        assert!(!first.exists() && cgroups.iter().count() == 1);
        assert!({ next }.remove_empty(), "adopted cgroups are removed when they are empty");
        std::fs::remove_dir(dir.path().join(PARENT).join("none")).unwrap();
        remove_view_cgroups(dir.path());
        assert!(!dir.path().join(PARENT).exists());
    }

    #[test]
    fn rules_of_one_cgroup_are_merged_and_unusable_paths_are_skipped() {
        let (folder, root) = (tempfile::tempdir().unwrap(), cgroup::root().unwrap());
        let here = || root.clone();
        let excluded = CgroupRule { excluded: true, view: 0 };
        let view = CgroupRule { excluded: false, view: 3 };
        let unusable = [here().join("gone"), folder.path().to_owned()];
        let [gone, folder] = unusable.each_ref().map(|path| rule_error(path).unwrap());
        assert!(gone == "does not exist" && folder.starts_with("is not a cgroup2 directory: "), "{gone}; {folder}");
        let all = [(here(), excluded), (here(), view)].into_iter().chain(unusable.map(|path| (path, view)));
        let rules: Vec<CgroupRule> = merge_rules(all).iter().map(|(_, _, rule)| *rule).collect();
        assert_eq!(rules, [CgroupRule { excluded: true, view: 3 }]);
    }
}
