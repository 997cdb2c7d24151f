//! A folder that changes under our eyes. Whatever happens to it, the sum of what the watch said must be what a fresh
//! look at the folder says.

mod support;

use beeline_cluster::{Batch, Claim, Folder, Snapshot};
use beeline_model::fact::Fact;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{Receiver, channel};
use tokio::task::JoinHandle;
use tokio::time::timeout;

struct Watched {
    path: PathBuf,
    batches: Receiver<Batch>,
    told: Snapshot,
    last: Batch,
    task: JoinHandle<()>,
    _root: tempfile::TempDir,
}

impl Watched {
    /// A watch on a folder with these files, told of them already.
    async fn new(files: &[(&str, String)]) -> Watched {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("manifests");
        fs::create_dir(&path).unwrap();
        files.iter().for_each(|(name, text)| fs::write(path.join(name), text).unwrap());
        let (sender, batches) = channel(16);
        let task = tokio::spawn(Folder::new(&path, "local", Claim::default()).watch(sender));
        let (told, last) = Default::default();
        let mut watched = Watched { path, batches, told, last, task, _root: root };
        watched.next().await;
        assert!(watched.last.synced && watched.last.error.is_none());
        watched
    }

    async fn next(&mut self) -> Vec<Fact> {
        let batch = timeout(Duration::from_secs(5), self.batches.recv()).await.expect("a batch").unwrap();
        batch.facts.iter().cloned().for_each(|fact| self.told.apply(fact));
        self.told.refusals = batch.refusals.to_vec();
        self.last = batch;
        self.last.facts.clone()
    }

    async fn silent(&mut self, millis: u64) {
        let said = timeout(Duration::from_millis(millis), self.batches.recv()).await;
        assert!(said.is_err(), "{said:?}");
    }

    /// Reads batches until what was told is what the folder says.
    async fn settle(&mut self) {
        while self.told != self.load() {
            self.next().await;
        }
    }

    fn load(&self) -> Snapshot {
        Folder::new(&self.path, "local", Claim::default()).load().unwrap()
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path.join(name), text).unwrap();
    }

    fn names(&self) -> Vec<&str> {
        self.told.services.keys().map(|name| name.name()).collect()
    }

    fn reasons(&self) -> Vec<&'static str> {
        support::reasons(&self.told)
    }
}

fn service(name: &str, last: u8) -> String {
    format!(
        "{{apiVersion: v1, kind: Service, metadata: {{name: {name}}}, spec: {{clusterIP: 10.0.0.{last}, \
         ports: [{{port: 80}}]}}}}\n"
    )
}

#[tokio::test]
async fn a_change_is_told_at_once_and_only_once() {
    let mut watched = Watched::new(&[("a.yaml", service("a", 1)), ("b.yaml", service("b", 2))]).await;
    let mut took = Vec::new();
    for i in 3..30 {
        let start = Instant::now();
        watched.write("a.yaml", &service("a", i));
        assert_eq!(watched.next().await.len(), 1);
        took.push(start.elapsed());
    }
    took.sort();
    println!("27 changes: median {:?}, slowest {:?}", took[13], took[26]);
    assert!(took[13] < Duration::from_millis(100), "{took:?}");
    watched.write("a.yaml", &("# another text, the same fact\n".to_owned() + &service("a", 29)));
    watched.silent(200).await;
    assert_eq!(watched.told, watched.load());
}

#[tokio::test]
async fn files_come_go_and_are_renamed() {
    let mut watched = Watched::new(&[("a.yaml", service("a", 1))]).await;
    watched.write("b.yaml", &service("b", 2));
    watched.settle().await;
    assert_eq!(watched.names(), ["a", "b"]);
    fs::rename(watched.path.join("b.yaml"), watched.path.join("z.yaml")).unwrap();
    watched.silent(200).await;
    fs::remove_file(watched.path.join("a.yaml")).unwrap();
    watched.settle().await;
    assert_eq!(watched.names(), ["b"]);
    fs::rename(watched.path.join("z.yaml"), watched.path.join("z.txt")).unwrap();
    watched.settle().await;
    assert!(watched.names().is_empty());
}

#[tokio::test]
async fn a_file_that_breaks_keeps_its_objects() {
    let mut watched = Watched::new(&[("a.yaml", service("a", 1) + "---\n" + &service("b", 2))]).await;
    watched.write("a.yaml", &(service("a", 9) + "---\nkind: [\n"));
    assert_eq!(watched.next().await.len(), 1, "the document that is whole counts");
    assert_eq!((watched.names(), watched.reasons()), (vec!["a", "b"], vec!["syntax", "kept"]));
    watched.write("a.yaml", &(service("a", 9) + "---\n" + &service("b", 2).replace("10.0.0.2", "10.0.0.x")));
    assert!(watched.next().await.is_empty());
    assert_eq!((watched.names(), watched.reasons()), (vec!["a", "b"], vec!["badClusterIP", "kept"]));
    watched.write("a.yaml", &service("a", 9));
    watched.settle().await;
    assert_eq!((watched.names(), watched.reasons().len()), (vec!["a"], 0));
}

#[tokio::test]
async fn a_file_cut_to_nothing_keeps_its_objects_until_it_is_removed() {
    let mut watched = Watched::new(&[("a.yaml", service("a", 1))]).await;
    watched.write("a.yaml", "");
    watched.next().await;
    assert_eq!((watched.names(), watched.reasons()), (vec!["a"], vec!["empty", "kept"]));
    watched.write("a.yaml", "# nothing any more\n");
    watched.settle().await;
    assert!(watched.names().is_empty());
}

#[tokio::test]
async fn a_file_is_read_when_its_writer_is_done() {
    use std::io::Write;
    let mut watched = Watched::new(&[("a.yaml", service("a", 1) + "---\n" + &service("b", 2))]).await;
    let mut file = fs::File::create(watched.path.join("a.yaml")).unwrap();
    for part in [service("a", 1), "---\n".into(), service("b", 7)] {
        tokio::time::sleep(Duration::from_millis(100)).await;
        file.write_all(part.as_bytes()).unwrap();
    }
    watched.silent(100).await;
    drop(file);
    assert_eq!(watched.next().await.len(), 1);
    assert_eq!(watched.told, watched.load());
}

#[tokio::test]
async fn who_loses_a_claim_makes_room_for_the_next() {
    let mut watched = Watched::new(&[("b.yaml", service("web", 2)), ("c.yaml", service("web", 3))]).await;
    let address = |watched: &Watched| watched.told.services.values().next().unwrap().cluster_ips[0].to_string();
    assert_eq!((address(&watched), watched.reasons()), ("10.0.0.2".into(), vec!["duplicate"]));
    watched.write("a.yaml", &service("web", 1));
    watched.settle().await;
    assert_eq!((address(&watched), watched.reasons().len()), ("10.0.0.1".into(), 2));
    fs::remove_file(watched.path.join("a.yaml")).unwrap();
    watched.settle().await;
    assert_eq!(address(&watched), "10.0.0.2");
    watched.write("b.yaml", &service("other", 4));
    watched.settle().await;
    assert_eq!((watched.names(), watched.reasons().len()), (vec!["other", "web"], 0));
}

#[tokio::test]
async fn endpoints_appear_and_vanish_with_their_service() {
    let endpoints = "{apiVersion: v1, kind: Endpoints, metadata: {name: web}, subsets: [{addresses: [{ip: 10.1.0.1}], \
                     ports: [{port: 80}]}]}";
    let mut watched = Watched::new(&[("a.yaml", endpoints.into())]).await;
    assert!(watched.told.slices.is_empty());
    watched.write("b.yaml", &service("web", 1));
    watched.settle().await;
    assert_eq!(watched.told.slices.len(), 1);
    watched.write("b.yaml", &service("web", 1).replace("spec: {", "spec: {selector: {app: web}, "));
    assert!(matches!(watched.next().await[..], [Fact::SliceGone(_)]), "the Service itself says the same as before");
    watched.write("b.yaml", &service("web", 1));
    watched.settle().await;
    watched.write("a.yaml", &endpoints.replace("10.1.0.1", "10.1.0.2"));
    assert!(matches!(watched.next().await[..], [Fact::Slice(_)]));
    fs::remove_file(watched.path.join("b.yaml")).unwrap();
    watched.settle().await;
    assert!(watched.told.slices.is_empty());
}

#[tokio::test]
async fn slices_without_a_service_are_named_as_long_as_it_is_missing() {
    let slice = "{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4, \
                 metadata: {name: w, labels: {kubernetes.io/service-name: web}}, endpoints: [{addresses: [10.1.0.1]}]}";
    let mut watched = Watched::new(&[("a.yaml", slice.into())]).await;
    assert_eq!((watched.told.slices.len(), watched.reasons()), (1, vec!["noService"]));
    watched.write("b.yaml", &service("web", 1));
    watched.settle().await;
    assert!(watched.reasons().is_empty());
    fs::remove_file(watched.path.join("b.yaml")).unwrap();
    watched.settle().await;
    assert_eq!(watched.reasons(), ["noService"]);
    fs::remove_file(watched.path.join("a.yaml")).unwrap();
    watched.settle().await;
    assert!(watched.reasons().is_empty());
}

#[tokio::test]
async fn a_folder_that_vanishes_keeps_its_objects_and_comes_back() {
    let mut watched = Watched::new(&[("a.yaml", service("a", 1)), ("b.yaml", service("b", 2))]).await;
    for round in 0..3 {
        fs::rename(&watched.path, watched.path.with_extension(format!("old{round}"))).unwrap();
        assert!(watched.next().await.is_empty());
        let error = watched.last.error.clone().unwrap();
        assert!(error.contains("--manifests") && watched.last.synced, "{error}");
        assert_eq!(watched.names(), ["a", "b"]);
        watched.silent(300).await;
        let next = watched.path.with_extension("next");
        fs::create_dir(&next).unwrap();
        fs::write(next.join("a.yaml"), service("a", 1)).unwrap();
        fs::write(next.join("b.yaml"), service("b", 10 + round)).unwrap();
        fs::rename(&next, &watched.path).unwrap();
        assert_eq!(watched.next().await.len(), 1, "only what is other in the new folder");
        assert!(watched.last.error.is_none());
        watched.write("b.yaml", &service("b", 20 + round));
        let start = Instant::now();
        assert_eq!(watched.next().await.len(), 1);
        assert!(start.elapsed() < Duration::from_millis(500), "{:?}: the new folder is not watched", start.elapsed());
    }
}

#[tokio::test]
async fn a_folder_removed_and_made_again_at_once() {
    let mut watched = Watched::new(&[("a.yaml", service("a", 1))]).await;
    for i in 2..8 {
        fs::remove_dir_all(&watched.path).unwrap();
        fs::create_dir(&watched.path).unwrap();
        watched.write("a.yaml", &service("a", i));
        watched.settle().await;
    }
}

#[tokio::test]
async fn a_folder_that_is_not_there_yet() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("later");
    let (sender, mut batches) = channel(1);
    let task = tokio::spawn(Folder::new(&path, "local", Claim::default()).watch(sender));
    let first = batches.recv().await.unwrap();
    assert!(!first.synced && first.error.is_some() && first.facts.is_empty());
    fs::create_dir(&path).unwrap();
    let second = timeout(Duration::from_secs(5), batches.recv()).await.unwrap().unwrap();
    assert!(second.synced && second.error.is_none());
    drop(batches);
    timeout(Duration::from_secs(5), task).await.expect("the watch ends when nobody listens").unwrap();
}

/// As a mounted ConfigMap is changed: files are links into a hidden folder, and one rename swaps that.
#[tokio::test]
async fn a_config_map_volume() {
    use std::os::unix::fs::symlink;
    let mut watched = Watched::new(&[]).await;
    let publish = |path: &Path, generation: u8| {
        let folder = path.join(format!("..gen{generation}"));
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("a.yaml"), service("a", generation)).unwrap();
        symlink(format!("..gen{generation}"), path.join("..data_tmp")).unwrap();
        fs::rename(path.join("..data_tmp"), path.join("..data")).unwrap();
    };
    publish(&watched.path, 1);
    symlink("..data/a.yaml", watched.path.join("a.yaml")).unwrap();
    watched.settle().await;
    for generation in 2..6 {
        publish(&watched.path, generation);
        assert_eq!(watched.next().await.len(), 1);
    }
    assert_eq!(watched.told, watched.load());
}

#[tokio::test]
async fn random_changes_add_up() {
    let mut random = fastrand::Rng::with_seed(7);
    let mut watched = Watched::new(&[]).await;
    for _ in 0..300 {
        let file = watched.path.join(format!("{}.yaml", random.u8(0..5)));
        let objects: Vec<String> =
            (0..random.u8(0..4)).map(|_| service(&format!("s{}", random.u8(0..6)), random.u8(1..4))).collect();
        match random.u8(0..10) {
            0 => drop(fs::remove_file(&file)),
            1 => drop(fs::rename(&file, watched.path.join("9.yaml"))),
            _ => fs::write(&file, format!("# said\n{}", objects.join("---\n"))).unwrap(),
        }
        if random.u8(0..3) == 0 {
            watched.settle().await;
        }
    }
    watched.settle().await;
    watched.task.abort();
}
