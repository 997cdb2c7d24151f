//! Finds pod and container cgroups by the kubelet's naming scheme, below the kubelet's own root only.
//!
//! ```text
//! cgroupfs  ROOT/kubepods/[burstable|besteffort/]podUID/CONTAINER[/...]
//! systemd   ROOT/kubepods.slice/[kubepods-QOS.slice/]kubepods[-QOS]-podUID.slice/RUNTIME-CONTAINER.scope[/...]
//! ```
//! ROOT is the kubelet's `--cgroup-root`, usually the root of the hierarchy. With another root, systemd's names begin with
//! its name: `kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-podUID.slice`. The cgroup of a guaranteed pod is directly
//! below the first level, in both schemes. In a systemd name, underscores replace the dashes of the UID, because systemd
//! uses a dash to separate levels.
//!
//! The names alone prove nothing: a user to whom a cgroup is delegated may create `kubepods/podUID` in it. Delegation
//! makes the user the owner of the directory, and a user cannot create directories of another owner. A root is searched
//! for only in directories of the owner of the whole tree.

use std::fs::DirEntry;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Maximum depth of the walk below a pod: containers may create deeply nested cgroups.
const DEPTH: usize = 14;
/// How far below the agent's cgroup the kubelet's root may be.
const ROOT_DEPTH: usize = 4;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodCgroup {
    pub uid: String,
    /// Directory of the pod's cgroup.
    pub path: PathBuf,
    pub id: u64,
    /// Every cgroup below the pod's: its id, and the id of its container (`None` above the container level).
    pub descendants: Vec<(u64, Option<String>)>,
}

/// A directory that may be the kubelet's root, with the pods below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubeletRoot {
    pub path: PathBuf,
    pub pods: Vec<PodCgroup>,
}

/// All directories at or below a cgroup that may be the kubelet's root, those nearest to it first. A cgroup that is removed
/// during the walk is skipped.
pub fn kubelet_roots(cgroup: &Path) -> Vec<KubeletRoot> {
    let Ok(owner) = cgroup.metadata().map(|metadata| metadata.uid()) else { return Vec::new() };
    if let Some(folder) = own_pods_folder(cgroup) {
        let path = folder.parent().unwrap_or(folder).to_owned();
        return vec![KubeletRoot { path, pods: sorted(pods_of(cgroup)) }];
    }
    let (mut roots, mut level) = (Vec::new(), vec![cgroup.to_owned()]);
    for _ in 0..ROOT_DEPTH {
        let mut next = Vec::new();
        for dir in level {
            let all = children(&dir).into_iter().filter(|(_, path, _)| is_owned_by(path, owner));
            let (folders, others): (Vec<_>, Vec<_>) = all.partition(|(name, ..)| is_pods_folder(name));
            next.extend(others.into_iter().map(|(_, path, _)| path));
            if !folders.is_empty() {
                let pods = folders.iter().flat_map(|(_, path, _)| pods_of(path)).collect();
                roots.push(KubeletRoot { path: dir, pods: sorted(pods) });
            }
        }
        level = next;
    }
    roots
}

/// The agent's cgroup may be the one that contains all pods, or those of one QoS class.
fn own_pods_folder(cgroup: &Path) -> Option<&Path> {
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let folder = if is_qos_folder(&name(cgroup)) { cgroup.parent()? } else { cgroup };
    is_pods_folder(&name(folder)).then_some(folder)
}

fn sorted(mut pods: Vec<PodCgroup>) -> Vec<PodCgroup> {
    pods.sort();
    pods
}

fn is_owned_by(path: &Path, owner: u32) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.uid() == owner)
}

/// `kubepods`, `kubepods.slice` or `PREFIX-kubepods.slice`.
fn is_pods_folder(name: &str) -> bool {
    name == "kubepods" || name == "kubepods.slice" || name.ends_with("-kubepods.slice")
}

/// `burstable`, `besteffort`, or systemd's `kubepods-burstable.slice`.
fn is_qos_folder(name: &str) -> bool {
    let name = name.strip_suffix(".slice").and_then(|slice| slice.rsplit_once('-')).map_or(name, |(_, class)| class);
    matches!(name, "burstable" | "besteffort")
}

/// The pods below `kubepods`. Other directories there are not searched.
fn pods_of(folder: &Path) -> Vec<PodCgroup> {
    let direct = children(folder).into_iter();
    let (classes, direct): (Vec<_>, Vec<_>) = direct.partition(|(name, ..)| is_qos_folder(name));
    let all = classes.iter().flat_map(|(_, path, _)| children(path)).chain(direct);
    all.filter_map(|(name, path, id)| pod_of(&name, path, id)).collect()
}

fn pod_of(name: &str, path: PathBuf, id: u64) -> Option<PodCgroup> {
    let uid = pod_uid(name)?;
    let mut descendants = Vec::new();
    collect_descendants(&path, DEPTH, None, &mut descendants);
    Some(PodCgroup { uid, path, id, descendants })
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
    let child = |entry: DirEntry| (entry.file_name().to_string_lossy().into_owned(), entry.path(), entry.ino());
    let mut all: Vec<(String, PathBuf, u64)> = folders.map(child).collect();
    all.sort();
    all
}

/// Parses `pod4f2a-...` or `[PREFIX-]kubepods[-QOS]-pod4f2a_....slice`.
fn pod_uid(name: &str) -> Option<String> {
    let (uid, dashes) = match name.strip_suffix(".slice") {
        Some(slice) if slice.starts_with("kubepods-") || slice.contains("-kubepods-") => {
            (slice.rsplit_once("-pod")?.1, '_')
        }
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
            format!("kubelet-kubepods-burstable-pod{systemd}.slice"),
        ] {
            assert_eq!(pod_uid(&name).as_deref(), Some(UID), "{name}");
        }
        let hash = "d41d8cd98f00b204e9800998ecf8427e";
        assert_eq!(pod_uid(&format!("pod{hash}")).as_deref(), Some(hash), "a static pod");
        for other in ["kubepods.slice", "kubepods-burstable.slice", "podman", "user.slice", "pods", "system"] {
            assert_eq!(pod_uid(other), None, "{other}");
        }
    }

    fn uids(root: &KubeletRoot) -> Vec<&str> {
        root.pods.iter().map(|pod| &*pod.uid).collect()
    }

    fn create(root: &Path, path: &str) -> PathBuf {
        let path = root.join(path);
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    #[test]
    fn the_kubelets_root_is_found_for_both_cgroup_drivers_and_at_another_place() {
        let slice = format!("pod{}.slice", UID.replace('-', "_"));
        for (root, pod) in [
            ("", format!("kubepods/pod{UID}")),
            ("", format!("kubepods/burstable/pod{UID}")),
            ("", format!("kubepods.slice/kubepods-{slice}")),
            ("", format!("kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-{slice}")),
            ("kubelet", format!("kubepods/besteffort/pod{UID}")),
            ("kubelet.slice", format!("kubelet-kubepods.slice/kubelet-kubepods-{slice}")),
            ("a/b", format!("kubepods/pod{UID}")),
        ] {
            let dir = tempfile::tempdir().unwrap();
            create(&dir.path().join(root), &pod);
            let [found] = &kubelet_roots(dir.path())[..] else { panic!("{pod}") };
            assert_eq!((&*found.path, uids(found)), (&*create(dir.path(), root), vec![UID]), "{pod}");
        }
    }

    #[test]
    fn the_agents_cgroup_may_be_the_one_of_all_pods() {
        let dir = tempfile::tempdir().unwrap();
        create(dir.path(), &format!("kubepods/pod{UID}"));
        create(dir.path(), &format!("kubepods/burstable/pod{UID}"));
        for (cgroup, pods) in [("kubepods", 2), ("kubepods/burstable", 1)] {
            let [found] = &kubelet_roots(&dir.path().join(cgroup))[..] else { panic!("{cgroup}") };
            assert_eq!((&*found.path, found.pods.len()), (dir.path(), pods), "{cgroup}");
        }
    }

    #[test]
    fn the_names_count_only_where_the_kubelet_creates_them() {
        let dir = tempfile::tempdir().unwrap();
        let path = |path: &str| drop(create(dir.path(), path));
        path(&format!("user.slice/pod{UID}"));
        path(&format!("kubepods/other/pod{UID}"));
        path(&format!("kubepods/pod11111111-5b1f-4c3d-9a55-6f0e3f1d2b11/container/kubepods/pod{UID}"));
        let [found] = &kubelet_roots(dir.path())[..] else { panic!() };
        assert_eq!(uids(found), ["11111111-5b1f-4c3d-9a55-6f0e3f1d2b11"]);
    }

    /// Changing the owner needs root, as all tests of this crate do.
    #[test]
    fn a_delegated_cgroup_is_not_searched() {
        let dir = tempfile::tempdir().unwrap();
        create(dir.path(), &format!("user.slice/user-1000/kubepods/pod{UID}"));
        assert_eq!(kubelet_roots(dir.path()).len(), 1);
        std::os::unix::fs::chown(dir.path().join("user.slice/user-1000"), Some(65_534), None).unwrap();
        assert_eq!(kubelet_roots(dir.path()), []);
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
