//! Who sees which view: cgroups that the configuration names, pods that ask for one, and the rooms of commands
//! (`beeline run --view`). A room is a cgroup below ours; its name tells its view, so that the next agent knows it too.

use beeline_datapath::cgroup;
use beeline_datapath::control::CgroupRule;
use beeline_model::Name;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// `beeline-view-NAME-NUMBER`
const ROOM: &str = "beeline-view-";
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
        let entries = std::fs::read_dir(root).into_iter().flatten().flatten();
        let known = entries.filter_map(|entry| {
            let view = view_of(entry.file_name().to_str()?)?;
            Some(Room { path: entry.path(), view, made: Instant::now(), used: true })
        });
        Rooms { root: root.to_owned(), all: known.collect() }
    }

    pub fn open(&mut self, view: &Name) -> std::io::Result<PathBuf> {
        let mut number = 0u32;
        loop {
            let path = self.root.join(format!("{ROOM}{view}-{number}"));
            match std::fs::create_dir(&path) {
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists && number < u32::MAX => number += 1,
                made => {
                    made?;
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

impl Room {
    fn is_left(&mut self) -> bool {
        let events = std::fs::read_to_string(self.path.join("cgroup.events")).unwrap_or_default();
        let populated = events.lines().any(|line| line == "populated 1");
        self.used |= populated;
        !populated && (self.used || self.made.elapsed() >= ENTER)
    }
}

fn view_of(name: &str) -> Option<Name> {
    let (view, number) = name.strip_prefix(ROOM)?.rsplit_once('-')?;
    (!view.is_empty() && number.parse::<u32>().is_ok()).then(|| view.into())
}

/// Rules of cgroups that are there, by id: one cgroup that is named twice has one rule.
pub fn gather(wanted: impl Iterator<Item = (PathBuf, CgroupRule)>) -> Vec<(PathBuf, u64, CgroupRule)> {
    let mut all: Vec<(PathBuf, u64, CgroupRule)> = Vec::new();
    for (path, rule) in wanted {
        let Ok(id) = cgroup::id(&path) else { continue };
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
        std::fs::create_dir(dir.path().join("beeline-view-none")).unwrap();
        let next = Rooms::adopt(dir.path());
        assert_eq!(next.iter().map(|(_, view)| &**view).collect::<Vec<_>>(), ["edge-1", "edge-1"]);
        assert!(!rooms.sweep(), "nobody has come yet, and may still");
        rooms.close(&first);
        assert!(!first.exists() && rooms.iter().count() == 1);
        assert!({ next }.sweep(), "those that were left are empty");
    }

    #[test]
    fn one_cgroup_has_one_rule() {
        let dir = tempfile::tempdir().unwrap();
        let here = || dir.path().to_owned();
        let untouched = CgroupRule { untouched: true, view: 0 };
        let view = CgroupRule { untouched: false, view: 3 };
        let all = gather([(here(), untouched), (here(), view), (here().join("gone"), view)].into_iter());
        let rules: Vec<CgroupRule> = all.iter().map(|(_, _, rule)| *rule).collect();
        assert_eq!(rules, [CgroupRule { untouched: true, view: 3 }]);
    }
}
