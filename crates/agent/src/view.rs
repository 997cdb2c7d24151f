//! Who sees which view: cgroups that the configuration names, pods that ask for one, and the rooms of commands
//! (`beeline run --view`). A room is a cgroup below ours; its name tells its view, so that the next agent knows it too.
//!
//! All rooms stand in one cgroup: at the root of the hierarchy only who may overrule modes (CAP_DAC_OVERRIDE) can make one,
//! and the agent may not. Whoever starts it makes that one for it.

use anyhow::Context;
use beeline_datapath::cgroup;
use beeline_datapath::control::{CgroupRule, LEVELS};
use beeline_model::Name;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Where the rooms are, below our cgroup; each is `NAME-NUMBER`.
const ROOMS: &str = "beeline-views";
/// Whoever asked for a room enters it within this time, or not at all.
const ENTER: Duration = Duration::from_secs(10);

#[derive(Debug)]
struct Room {
    path: PathBuf,
    view: Name,
    made: Instant,
    used: bool,
}

#[derive(Debug)]
pub struct Rooms {
    root: PathBuf,
    all: Vec<Room>,
}

impl Rooms {
    /// With those that an earlier agent has left.
    pub fn adopt(root: &Path) -> Rooms {
        let root = root.join(ROOMS);
        let entries = std::fs::read_dir(&root).into_iter().flatten().flatten();
        let known = entries.filter_map(|entry| {
            let view = view_of(entry.file_name().to_str()?).filter(|_| entry.path().is_dir())?;
            Some(Room { path: entry.path(), view, made: Instant::now(), used: true })
        });
        let all = known.collect();
        Rooms { root, all }
    }

    pub fn open(&mut self, view: &Name) -> anyhow::Result<PathBuf> {
        if !self.root.is_dir() {
            let how = || format!("there is no cgroup for rooms; as root: mkdir {}", self.root.display());
            std::fs::create_dir(&self.root).with_context(how)?;
        }
        let mut number = 0u32;
        loop {
            let path = self.root.join(format!("{view}-{number}"));
            match std::fs::create_dir(&path) {
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists && number < u32::MAX => number += 1,
                made => {
                    made.with_context(|| format!("no cgroup at {}", path.display()))?;
                    self.all.push(Room { path: path.clone(), view: view.clone(), made: Instant::now(), used: false });
                    return Ok(path);
                }
            }
        }
    }

    pub fn close(&mut self, path: &Path) {
        let _ = std::fs::remove_dir(path);
        self.all.retain(|room| room.path != path);
    }

    /// Removes those whose processes have ended; says whether there were any.
    pub fn sweep(&mut self) -> bool {
        let before = self.all.len();
        self.all.retain_mut(|room| !room.is_left() || std::fs::remove_dir(&room.path).is_err() && room.path.exists());
        self.all.len() != before
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Path, &Name)> {
        self.all.iter().map(|room| (room.path.as_path(), &room.view))
    }
}

/// Where nobody is in them any more: the last trace of an agent that has gone.
pub fn remove_rooms(root: &Path) {
    Rooms::adopt(root).sweep();
    let _ = std::fs::remove_dir(root.join(ROOMS)); // Somebody may still be there.
}

impl Room {
    fn is_left(&mut self) -> bool {
        let events = std::fs::read_to_string(self.path.join("cgroup.events")).unwrap_or_default();
        let populated = events.lines().any(|line| line == "populated 1");
        self.used |= populated;
        !populated && (self.used || self.made.elapsed() >= ENTER)
    }
}

fn view_of(name: &str) -> Option<Name> {
    let (view, number) = name.rsplit_once('-')?;
    (!view.is_empty() && number.parse::<u32>().is_ok()).then(|| view.into())
}

/// Why nobody there can be told a view.
pub fn unfit(path: &Path) -> Option<String> {
    match cgroup::level(path) {
        _ if !path.exists() => Some("is not there".into()),
        Ok(level) if level < LEVELS => None,
        Ok(level) => Some(format!("is {level} levels deep: at most {} can be told", LEVELS - 1)),
        Err(why) => Some(format!("is no cgroup2: {why}")),
    }
}

/// Rules of cgroups that are there and can have one, by id: one cgroup that is named twice has one rule.
pub fn gather(wanted: impl Iterator<Item = (PathBuf, CgroupRule)>) -> Vec<(PathBuf, u64, CgroupRule)> {
    let mut all: Vec<(PathBuf, u64, CgroupRule)> = Vec::new();
    for (path, rule) in wanted {
        let Some(id) = cgroup::id(&path).ok().filter(|_| unfit(&path).is_none()) else { continue };
        match all.iter_mut().find(|(_, known, _)| *known == id) {
            Some((_, _, known)) => {
                known.untouched |= rule.untouched;
                known.view = if rule.view == 0 { known.view } else { rule.view };
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
    fn a_room_tells_its_view_to_the_next_agent() {
        let dir = tempfile::tempdir().unwrap();
        let mut rooms = Rooms::adopt(dir.path());
        let (first, second) = (rooms.open(&"edge-1".into()).unwrap(), rooms.open(&"edge-1".into()).unwrap());
        assert!(first != second && first.is_dir() && second.is_dir());
        std::fs::create_dir(dir.path().join(ROOMS).join("none")).unwrap();
        let next = Rooms::adopt(dir.path());
        assert_eq!(next.iter().map(|(_, view)| &**view).collect::<Vec<_>>(), ["edge-1", "edge-1"]);
        assert!(!rooms.sweep(), "nobody has come yet, and may still");
        rooms.close(&first);
        assert!(!first.exists() && rooms.iter().count() == 1);
        assert!({ next }.sweep(), "those that were left are empty");
        std::fs::remove_dir(dir.path().join(ROOMS).join("none")).unwrap();
        remove_rooms(dir.path());
        assert!(!dir.path().join(ROOMS).exists());
    }

    #[test]
    fn one_cgroup_has_one_rule_and_what_is_none_takes_no_rule_from_the_others() {
        let (folder, root) = (tempfile::tempdir().unwrap(), cgroup::root().unwrap());
        let here = || root.clone();
        let untouched = CgroupRule { untouched: true, view: 0 };
        let view = CgroupRule { untouched: false, view: 3 };
        let none = [here().join("gone"), folder.path().to_owned()];
        let [gone, folder] = none.each_ref().map(|path| unfit(path).unwrap());
        assert!(gone == "is not there" && folder.starts_with("is no cgroup2: "), "{gone}; {folder}");
        let all = [(here(), untouched), (here(), view)].into_iter().chain(none.map(|path| (path, view)));
        let all = gather(all);
        let rules: Vec<CgroupRule> = all.iter().map(|(_, _, rule)| *rule).collect();
        assert_eq!(rules, [CgroupRule { untouched: true, view: 3 }]);
    }
}
