//! Watching a folder while it changes. Whatever happens to the folder, the changes that were sent must add up to what a
//! fresh load of the folder gives.

mod support;

use beeline_cluster::{ChangeBatch, FolderSource, ServiceFilter, Snapshot};
use beeline_harness::test_seed;
use beeline_model::change::{Change, ObjectKey};
use beeline_model::object::Object;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{Receiver, channel};
use tokio::task::JoinHandle;
use tokio::time::timeout;

struct WatchedFolder {
    path: PathBuf,
    batches: Receiver<ChangeBatch>,
    applied: Snapshot,
    last: ChangeBatch,
    task: JoinHandle<()>,
    _root: tempfile::TempDir,
}

impl WatchedFolder {
    /// Watches a folder with these files, and receives the first batch.
    async fn new(files: &[(&str, String)]) -> WatchedFolder {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("manifests");
        fs::create_dir(&path).unwrap();
        files.iter().for_each(|(name, text)| fs::write(path.join(name), text).unwrap());
        let (sender, batches) = channel(16);
        let task = tokio::spawn(FolderSource::new(&path, "local", ServiceFilter::default()).watch(sender));
        let (applied, last) = Default::default();
        let mut watched = WatchedFolder { path, batches, applied, last, task, _root: root };
        watched.next().await;
        assert!(watched.last.synced && watched.last.error.is_none());
        watched
    }

    async fn next(&mut self) -> Vec<Change> {
        let batch = timeout(Duration::from_secs(5), self.batches.recv()).await.expect("a batch").unwrap();
        batch.changes.iter().cloned().for_each(|change| self.applied.apply(change));
        self.applied.refusals = batch.refusals.to_vec();
        self.last = batch;
        self.last.changes.clone()
    }

    async fn expect_no_batch(&mut self, millis: u64) {
        let received = timeout(Duration::from_millis(millis), self.batches.recv()).await;
        assert!(received.is_err(), "{received:?}");
    }

    /// Receives batches until the applied changes equal a fresh load.
    async fn catch_up(&mut self) {
        while self.applied != self.load() {
            self.next().await;
        }
    }

    fn load(&self) -> Snapshot {
        FolderSource::new(&self.path, "local", ServiceFilter::default()).load().unwrap()
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path.join(name), text).unwrap();
    }

    fn names(&self) -> Vec<&str> {
        self.applied.services.keys().map(|name| name.name()).collect()
    }

    fn reasons(&self) -> Vec<&'static str> {
        support::reasons(&self.applied)
    }
}

fn service(name: &str, last: u8) -> String {
    format!(
        "{{apiVersion: v1, kind: Service, metadata: {{name: {name}}}, spec: {{clusterIP: 10.0.0.{last}, \
         ports: [{{port: 80}}]}}}}\n"
    )
}

#[tokio::test]
async fn a_change_is_sent_once_without_delay() {
    let mut watched = WatchedFolder::new(&[("a.yaml", service("a", 1)), ("b.yaml", service("b", 2))]).await;
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
    watched.write("a.yaml", &("# another text, the same object\n".to_owned() + &service("a", 29)));
    watched.expect_no_batch(200).await;
    assert_eq!(watched.applied, watched.load());
}

#[tokio::test]
async fn files_are_added_removed_and_renamed() {
    let mut watched = WatchedFolder::new(&[("a.yaml", service("a", 1))]).await;
    watched.write("b.yaml", &service("b", 2));
    watched.catch_up().await;
    assert_eq!(watched.names(), ["a", "b"]);
    fs::rename(watched.path.join("b.yaml"), watched.path.join("z.yaml")).unwrap();
    watched.expect_no_batch(200).await;
    fs::remove_file(watched.path.join("a.yaml")).unwrap();
    watched.catch_up().await;
    assert_eq!(watched.names(), ["b"]);
    fs::rename(watched.path.join("z.yaml"), watched.path.join("z.txt")).unwrap();
    watched.catch_up().await;
    assert!(watched.names().is_empty());
}

#[tokio::test]
async fn objects_of_a_broken_file_stay_in_effect() {
    let mut watched = WatchedFolder::new(&[("a.yaml", service("a", 1) + "---\n" + &service("b", 2))]).await;
    watched.write("a.yaml", &(service("a", 9) + "---\nkind: [\n"));
    assert_eq!(watched.next().await.len(), 1, "the valid document takes effect");
    assert_eq!((watched.names(), watched.reasons()), (vec!["a", "b"], vec!["syntax", "kept"]));
    watched.write("a.yaml", &(service("a", 9) + "---\n" + &service("b", 2).replace("10.0.0.2", "10.0.0.x")));
    assert!(watched.next().await.is_empty());
    assert_eq!((watched.names(), watched.reasons()), (vec!["a", "b"], vec!["badClusterIP", "kept"]));
    watched.write("a.yaml", &service("a", 9));
    watched.catch_up().await;
    assert_eq!((watched.names(), watched.reasons().len()), (vec!["a"], 0));
}

#[tokio::test]
async fn objects_of_a_truncated_file_stay_in_effect() {
    let mut watched = WatchedFolder::new(&[("a.yaml", service("a", 1))]).await;
    watched.write("a.yaml", "");
    watched.next().await;
    assert_eq!((watched.names(), watched.reasons()), (vec!["a"], vec!["empty", "kept"]));
    watched.write("a.yaml", "# no objects\n");
    watched.catch_up().await;
    assert!(watched.names().is_empty());
}

#[tokio::test]
async fn a_file_is_read_after_it_is_closed() {
    use std::io::Write;
    let mut watched = WatchedFolder::new(&[("a.yaml", service("a", 1) + "---\n" + &service("b", 2))]).await;
    let mut file = fs::File::create(watched.path.join("a.yaml")).unwrap();
    for part in [service("a", 1), "---\n".into(), service("b", 7)] {
        tokio::time::sleep(Duration::from_millis(100)).await;
        file.write_all(part.as_bytes()).unwrap();
    }
    watched.expect_no_batch(100).await;
    drop(file);
    assert_eq!(watched.next().await.len(), 1);
    assert_eq!(watched.applied, watched.load());
}

#[tokio::test]
async fn the_next_definition_takes_effect_when_the_first_is_removed() {
    let mut watched = WatchedFolder::new(&[("b.yaml", service("web", 2)), ("c.yaml", service("web", 3))]).await;
    let address =
        |watched: &WatchedFolder| watched.applied.services.values().next().unwrap().cluster_ips[0].to_string();
    assert_eq!((address(&watched), watched.reasons()), ("10.0.0.2".into(), vec!["duplicate"]));
    watched.write("a.yaml", &service("web", 1));
    watched.catch_up().await;
    assert_eq!((address(&watched), watched.reasons().len()), ("10.0.0.1".into(), 2));
    fs::remove_file(watched.path.join("a.yaml")).unwrap();
    watched.catch_up().await;
    assert_eq!(address(&watched), "10.0.0.2");
    watched.write("b.yaml", &service("other", 4));
    watched.catch_up().await;
    assert_eq!((watched.names(), watched.reasons().len()), (vec!["other", "web"], 0));
}

#[tokio::test]
async fn endpoints_are_added_and_removed_with_their_service() {
    let endpoints = "{apiVersion: v1, kind: Endpoints, metadata: {name: web}, subsets: [{addresses: [{ip: 10.1.0.1}], \
                     ports: [{port: 80}]}]}";
    let mut watched = WatchedFolder::new(&[("a.yaml", endpoints.into())]).await;
    assert!(watched.applied.slices.is_empty());
    watched.write("b.yaml", &service("web", 1));
    watched.catch_up().await;
    assert_eq!(watched.applied.slices.len(), 1);
    watched.write("b.yaml", &service("web", 1).replace("spec: {", "spec: {selector: {app: web}, "));
    assert!(
        matches!(watched.next().await[..], [Change::Delete(ObjectKey::Slice(_))]),
        "the Service itself is unchanged"
    );
    watched.write("b.yaml", &service("web", 1));
    watched.catch_up().await;
    watched.write("a.yaml", &endpoints.replace("10.1.0.1", "10.1.0.2"));
    assert!(matches!(watched.next().await[..], [Change::Upsert(Object::Slice(_))]));
    fs::remove_file(watched.path.join("b.yaml")).unwrap();
    watched.catch_up().await;
    assert!(watched.applied.slices.is_empty());
}

#[tokio::test]
async fn slices_are_refused_while_their_service_is_missing() {
    let slice = "{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4, \
                 metadata: {name: w, labels: {kubernetes.io/service-name: web}}, endpoints: [{addresses: [10.1.0.1]}]}";
    let mut watched = WatchedFolder::new(&[("a.yaml", slice.into())]).await;
    assert_eq!((watched.applied.slices.len(), watched.reasons()), (1, vec!["noService"]));
    watched.write("b.yaml", &service("web", 1));
    watched.catch_up().await;
    assert!(watched.reasons().is_empty());
    fs::remove_file(watched.path.join("b.yaml")).unwrap();
    watched.catch_up().await;
    assert_eq!(watched.reasons(), ["noService"]);
    fs::remove_file(watched.path.join("a.yaml")).unwrap();
    watched.catch_up().await;
    assert!(watched.reasons().is_empty());
}

#[tokio::test]
async fn objects_stay_in_effect_while_the_folder_is_missing() {
    let mut watched = WatchedFolder::new(&[("a.yaml", service("a", 1)), ("b.yaml", service("b", 2))]).await;
    for round in 0..3 {
        fs::rename(&watched.path, watched.path.with_extension(format!("old{round}"))).unwrap();
        assert!(watched.next().await.is_empty());
        let error = watched.last.error.clone().unwrap();
        assert!(error.contains("--manifests") && watched.last.synced, "{error}");
        assert_eq!(watched.names(), ["a", "b"]);
        watched.expect_no_batch(300).await;
        let next = watched.path.with_extension("next");
        fs::create_dir(&next).unwrap();
        fs::write(next.join("a.yaml"), service("a", 1)).unwrap();
        fs::write(next.join("b.yaml"), service("b", 10 + round)).unwrap();
        fs::rename(&next, &watched.path).unwrap();
        assert_eq!(watched.next().await.len(), 1, "only the difference to the new folder");
        assert!(watched.last.error.is_none());
        watched.write("b.yaml", &service("b", 20 + round));
        let start = Instant::now();
        assert_eq!(watched.next().await.len(), 1);
        assert!(start.elapsed() < Duration::from_millis(500), "{:?}: the new folder is not watched", start.elapsed());
    }
}

#[tokio::test]
async fn a_folder_that_is_recreated_at_once_is_read() {
    let mut watched = WatchedFolder::new(&[("a.yaml", service("a", 1))]).await;
    for i in 2..8 {
        fs::remove_dir_all(&watched.path).unwrap();
        fs::create_dir(&watched.path).unwrap();
        watched.write("a.yaml", &service("a", i));
        watched.catch_up().await;
    }
}

#[tokio::test]
async fn a_folder_that_is_created_later_is_read() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("later");
    let (sender, mut batches) = channel(1);
    let task = tokio::spawn(FolderSource::new(&path, "local", ServiceFilter::default()).watch(sender));
    let first = batches.recv().await.unwrap();
    assert!(!first.synced && first.error.is_some() && first.changes.is_empty());
    fs::create_dir(&path).unwrap();
    let second = timeout(Duration::from_secs(5), batches.recv()).await.unwrap().unwrap();
    assert!(second.synced && second.error.is_none());
    drop(batches);
    timeout(Duration::from_secs(5), task).await.expect("the watch ends when the receiver is dropped").unwrap();
}

/// The kubelet updates a mounted ConfigMap by one rename: the files are links into a hidden folder, which is replaced.
#[tokio::test]
async fn an_update_of_a_mounted_config_map_is_read() {
    use std::os::unix::fs::symlink;
    let mut watched = WatchedFolder::new(&[]).await;
    let publish = |path: &Path, generation: u8| {
        let folder = path.join(format!("..gen{generation}"));
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("a.yaml"), service("a", generation)).unwrap();
        symlink(format!("..gen{generation}"), path.join("..data_tmp")).unwrap();
        fs::rename(path.join("..data_tmp"), path.join("..data")).unwrap();
    };
    publish(&watched.path, 1);
    symlink("..data/a.yaml", watched.path.join("a.yaml")).unwrap();
    watched.catch_up().await;
    for generation in 2..6 {
        publish(&watched.path, generation);
        assert_eq!(watched.next().await.len(), 1);
    }
    assert_eq!(watched.applied, watched.load());
}

#[tokio::test]
async fn the_batches_of_random_changes_add_up_to_a_fresh_load() {
    let mut random = fastrand::Rng::with_seed(test_seed(7));
    let mut watched = WatchedFolder::new(&[]).await;
    for _ in 0..300 {
        let file = watched.path.join(format!("{}.yaml", random.u8(0..5)));
        let objects: Vec<String> =
            (0..random.u8(0..4)).map(|_| service(&format!("s{}", random.u8(0..6)), random.u8(1..4))).collect();
        match random.u8(0..10) {
            0 => drop(fs::remove_file(&file)),
            1 => drop(fs::rename(&file, watched.path.join("9.yaml"))),
            _ => fs::write(&file, format!("# objects\n{}", objects.join("---\n"))).unwrap(),
        }
        if random.u8(0..3) == 0 {
            watched.catch_up().await;
        }
    }
    watched.catch_up().await;
    watched.task.abort();
}
