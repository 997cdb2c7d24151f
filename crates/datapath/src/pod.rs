//! Cgroups of pods, by the kubelet's naming: which pod and which container a cgroup belongs to.
//!
//! ```text
//! cgroupfs  kubepods/[burstable|besteffort/]podUID/CONTAINER[/...]
//! systemd   kubepods.slice/[kubepods-QOS.slice/]kubepods[-QOS]-podUID.slice/RUNTIME-CONTAINER.scope[/...]
//! ```
//! A guaranteed pod stands directly below the first level, in both. In a systemd name the UID's dashes are underscores,
//! as a dash there means a level.

use std::os::unix::fs::DirEntryExt;
use std::path::{Path, PathBuf};

/// Beyond this depth nobody looks: a container's own cgroups may nest as they like.
const DEPTH: usize = 16;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodCgroup {
    pub uid: String,
    /// The pod's own directory.
    pub path: PathBuf,
    pub id: u64,
    /// Every cgroup below it: its id, and the container whose it is (`None`: between pod and container).
    pub inside: Vec<(u64, Option<String>)>,
}

/// All pods at or below a cgroup. What vanishes meanwhile is not there.
pub fn pods_below(root: &Path) -> Vec<PodCgroup> {
    let mut found = Vec::new();
    walk(root, DEPTH, &mut found);
    found.sort();
    found
}

fn walk(dir: &Path, depth: usize, found: &mut Vec<PodCgroup>) {
    for (name, path, id) in children(dir) {
        match pod_uid(&name) {
            Some(uid) => {
                let mut inside = Vec::new();
                look_inside(&path, depth - 1, None, &mut inside);
                found.push(PodCgroup { uid, path, id, inside });
            }
            None if depth > 1 => walk(&path, depth - 1, found),
            None => {}
        }
    }
}

fn look_inside(dir: &Path, depth: usize, container: Option<&String>, inside: &mut Vec<(u64, Option<String>)>) {
    for (name, path, id) in children(dir) {
        let own = container.cloned().or_else(|| container_id(&name));
        inside.push((id, own.clone()));
        if depth > 1 {
            look_inside(&path, depth - 1, own.as_ref(), inside);
        }
    }
}

fn children(dir: &Path) -> Vec<(String, PathBuf, u64)> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders.map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.path(), entry.ino())).collect()
}

/// `pod4f2a-...`, or `kubepods[-QOS]-pod4f2a_....slice`.
fn pod_uid(name: &str) -> Option<String> {
    let (uid, dashes) = match name.strip_suffix(".slice") {
        Some(slice) if slice.starts_with("kubepods") => (slice.rsplit_once("-pod")?.1, '_'),
        Some(_) => return None,
        None => (name.strip_prefix("pod")?, '-'),
    };
    let uid = uid.replace(dashes, "-");
    // A static pod's UID is a hash without dashes.
    let fits = uid.len() >= 32 && uid.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
    fits.then_some(uid)
}

/// The container's id alone, or `RUNTIME-ID.scope`. CRI-O's `crio-conmon-ID.scope` is the container's too.
fn container_id(name: &str) -> Option<String> {
    let id = match name.strip_suffix(".scope") {
        Some(scope) => scope.rsplit_once('-').map_or(scope, |(_, id)| id),
        None => name,
    };
    (id.len() == 64 && id.bytes().all(|b| b.is_ascii_hexdigit())).then(|| id.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "0c9a3a3e-5b1f-4c3d-9a55-6f0e3f1d2b11";

    #[test]
    fn both_drivers_and_every_class() {
        let systemd = UID.replace('-', "_");
        for name in [
            format!("pod{UID}"),
            format!("kubepods-pod{systemd}.slice"),
            format!("kubepods-burstable-pod{systemd}.slice"),
            format!("kubepods-besteffort-pod{systemd}.slice"),
        ] {
            assert_eq!(pod_uid(&name).as_deref(), Some(UID), "{name}");
        }
        let hash = "d41d8cd98f00b204e9800998ecf8427e";
        assert_eq!(pod_uid(&format!("pod{hash}")).as_deref(), Some(hash), "a static pod");
        for other in ["kubepods.slice", "kubepods-burstable.slice", "podman", "user.slice", "pods", "system"] {
            assert_eq!(pod_uid(other), None, "{other}");
        }
    }

    #[test]
    fn a_container_is_known_by_its_id() {
        let id = "4f2a".repeat(16);
        let forms = [
            id.clone(),
            format!("cri-containerd-{id}.scope"),
            format!("crio-{id}.scope"),
            format!("docker-{id}.scope"),
        ];
        forms.iter().for_each(|form| assert_eq!(container_id(form).as_ref(), Some(&id), "{form}"));
        assert_eq!(container_id("init.scope"), None);
    }
}
