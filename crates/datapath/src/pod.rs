//! Finds pod and container cgroups by the kubelet's naming scheme.
//!
//! ```text
//! cgroupfs  kubepods/[burstable|besteffort/]podUID/CONTAINER[/...]
//! systemd   kubepods.slice/[kubepods-QOS.slice/]kubepods[-QOS]-podUID.slice/RUNTIME-CONTAINER.scope[/...]
//! ```
//! The cgroup of a guaranteed pod is directly below the first level, in both schemes. In a systemd name, underscores
//! replace the dashes of the UID, because systemd uses a dash to separate levels.

use std::os::unix::fs::DirEntryExt;
use std::path::{Path, PathBuf};

/// Maximum depth of the walk: containers may create deeply nested cgroups.
const DEPTH: usize = 16;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodCgroup {
    pub uid: String,
    /// Directory of the pod's cgroup.
    pub path: PathBuf,
    pub id: u64,
    /// Every cgroup below the pod's: its id, and the id of its container (`None` above the container level).
    pub descendants: Vec<(u64, Option<String>)>,
}

/// All pod cgroups at or below a cgroup. A cgroup that is removed during the walk is skipped.
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
                let mut descendants = Vec::new();
                collect_descendants(&path, depth - 1, None, &mut descendants);
                found.push(PodCgroup { uid, path, id, descendants });
            }
            None if depth > 1 => walk(&path, depth - 1, found),
            None => {}
        }
    }
}

fn collect_descendants(
    dir: &Path,
    depth: usize,
    container: Option<&String>,
    descendants: &mut Vec<(u64, Option<String>)>,
) {
    for (name, path, id) in children(dir) {
        let own = container.cloned().or_else(|| container_id(&name));
        descendants.push((id, own.clone()));
        if depth > 1 {
            collect_descendants(&path, depth - 1, own.as_ref(), descendants);
        }
    }
}

fn children(dir: &Path) -> Vec<(String, PathBuf, u64)> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders.map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.path(), entry.ino())).collect()
}

/// Parses `pod4f2a-...` or `kubepods[-QOS]-pod4f2a_....slice`.
fn pod_uid(name: &str) -> Option<String> {
    let (uid, dashes) = match name.strip_suffix(".slice") {
        Some(slice) if slice.starts_with("kubepods") => (slice.rsplit_once("-pod")?.1, '_'),
        Some(_) => return None,
        None => (name.strip_prefix("pod")?, '-'),
    };
    let uid = uid.replace(dashes, "-");
    // The UID of a static pod is a hash without dashes.
    let is_uid = uid.len() >= 32 && uid.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
    is_uid.then_some(uid)
}

/// `ID` or `RUNTIME-ID.scope`. CRI-O's `crio-conmon-ID.scope` also belongs to the container.
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
    fn pod_uid_is_parsed_for_both_cgroup_drivers_and_every_qos_class() {
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
    fn container_id_is_parsed_for_every_runtime() {
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
