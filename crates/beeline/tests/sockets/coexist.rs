//! Others at the same hooks, before us and after us; and nobody of ours where we must not be.

use crate::ground::{Ground, Object};
use crate::kind::{TRANSPORTS, reach, ways};
use beeline_datapath::query::{attached, is_ours};
use beeline_harness::{Dial, Kind, Lab};
use libbpf_rs::{Link, MapCore, MapFlags, Object as Loaded, ObjectBuilder, libbpf_sys};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::process::Command;

/// A program of somebody else, at connect4.
struct Bystander {
    object: Loaded,
    _link: Option<Link>,
}

impl Bystander {
    fn load(dir: &Path) -> Bystander {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let clang = std::env::var("BEELINE_CLANG").unwrap_or_else(|_| "clang-19".to_owned());
        let (source, path) = (here.join("tests/sockets/bystander.bpf.c"), dir.join("bystander.bpf.o"));
        let built = Command::new(clang)
            .args(["-target", "bpf", "-O2", "-g", "-nostdinc", "-mcpu=v3", "-Wall", "-Werror", "-c"])
            .args([source, "-o".into(), path.clone()])
            .status();
        assert!(built.unwrap().success());
        let object = ObjectBuilder::default().open_file(&path).unwrap().load().unwrap();
        Bystander { object, _link: None }
    }

    /// By program, as Calico and older agents do.
    fn attach(self, cgroup: &Path) -> Bystander {
        let dir = File::open(cgroup).unwrap();
        let program = self.object.progs_mut().next().unwrap().as_fd().as_raw_fd();
        let kind = libbpf_sys::BPF_CGROUP_INET4_CONNECT;
        // SAFETY: three numbers; both descriptors are open.
        let code =
            unsafe { libbpf_sys::bpf_prog_attach(program, dir.as_raw_fd(), kind, libbpf_sys::BPF_F_ALLOW_MULTI) };
        assert_eq!(code, 0, "attach by program");
        self
    }

    /// By link, as newer ones do.
    fn link(self, cgroup: &Path) -> Bystander {
        let dir = File::open(cgroup).unwrap();
        let link = self.object.progs_mut().next().unwrap().attach_cgroup(dir.as_raw_fd()).unwrap();
        Bystander { _link: Some(link), ..self }
    }

    fn seen(&self) -> u64 {
        let map = self.object.maps().next().unwrap();
        u64::from_ne_bytes(map.lookup(&[0; 4], MapFlags::ANY).unwrap().unwrap().try_into().unwrap())
    }
}

/// What Calico's agent does to the hooks of connect-time load balancing when it starts without it: it asks what is
/// attached at the cgroup and detaches the first program of each, by program.
fn replay_felix(cgroup: &Path) -> usize {
    let dir = File::open(cgroup).unwrap();
    let kinds = [
        ("connect4", libbpf_sys::BPF_CGROUP_INET4_CONNECT),
        ("connect6", libbpf_sys::BPF_CGROUP_INET6_CONNECT),
        ("sendmsg4", libbpf_sys::BPF_CGROUP_UDP4_SENDMSG),
        ("sendmsg6", libbpf_sys::BPF_CGROUP_UDP6_SENDMSG),
        ("recvmsg4", libbpf_sys::BPF_CGROUP_UDP4_RECVMSG),
        ("recvmsg6", libbpf_sys::BPF_CGROUP_UDP6_RECVMSG),
    ];
    let all = attached(cgroup).unwrap();
    let mut detached = 0;
    for (hook, kind) in kinds {
        let first = all.iter().find(|p| p.hook == hook).expect("something is attached");
        // SAFETY: numbers only; the descriptor is closed by the process's end.
        let code = unsafe {
            let program = libbpf_sys::bpf_prog_get_fd_by_id(first.id);
            assert!(program >= 0, "{first:?}");
            libbpf_sys::bpf_prog_detach2(program, dir.as_raw_fd(), kind)
        };
        detached += usize::from(code == 0);
    }
    detached
}

fn hooks(cgroup: &Path) -> Vec<&'static str> {
    attached(cgroup).unwrap().iter().filter(|p| is_ours(p)).map(|p| p.hook).collect()
}

const HOOKS: [&str; 8] =
    ["connect4", "connect6", "sendmsg4", "sendmsg6", "recvmsg4", "recvmsg6", "getpeername4", "getpeername6"];

#[test]
fn others_before_and_after_us() {
    let lab = Lab::new(1).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let cgroup = lab.cgroup().path().to_owned();
    let before = Bystander::load(dir.path()).attach(&cgroup);
    let web = Object::service("web", 10).at(&[(lab.pod(0), "node-1")]);
    let mut ground = Ground::on(lab, &[web], &[]);
    let after = Bystander::load(dir.path()).attach(&cgroup);
    let linked = Bystander::load(dir.path()).link(&cgroup);
    let _server = ground.lab.pod(0).serve(8080).unwrap();
    let client = ground.lab.node().client().unwrap();
    let dial = || {
        for kind in TRANSPORTS {
            ways("10.96.0.10", "fd00:96::10", 80)
                .iter()
                .for_each(|to| drop(reach(&client, &Dial::new(kind, *to), &["pod-a"])));
        }
    };
    for _ in 0..3 {
        let seen = [&before, &after, &linked].map(Bystander::seen);
        dial();
        // TCP and connected UDP, IPv4.
        assert_eq!([&before, &after, &linked].map(Bystander::seen), seen.map(|n| n + 2));
        assert_eq!(hooks(&cgroup), HOOKS);
        // An agent that comes back does not attach a second time, nor lose its place.
        ground.kill_agent();
        dial();
        ground.start();
    }
    // Calico takes away what it finds first, which may be a bystander's; never ours.
    let detached = replay_felix(&cgroup);
    assert!(detached <= 1, "only the bystander that was attached by program");
    replay_felix(&cgroup);
    assert_eq!(hooks(&cgroup), HOOKS);
    dial();
}

#[test]
fn felix_starts_and_our_dials_go_on() {
    let lab = Lab::new(1).unwrap();
    let web = Object::service("web", 10).at(&[(lab.pod(0), "node-1")]);
    let ground = Ground::on(lab, &[web], &[]);
    let _server = ground.lab.pod(0).serve(8080).unwrap();
    let client = ground.lab.node().client().unwrap();
    let cgroup = ground.lab.cgroup().path().to_owned();
    assert_eq!(hooks(&cgroup), HOOKS);
    assert_eq!(replay_felix(&cgroup), 0, "our links are not to be detached by program");
    assert_eq!(hooks(&cgroup), HOOKS);
    for kind in Kind::TCP.into_iter().chain(Kind::UDP) {
        ways("10.96.0.10", "fd00:96::10", 80)
            .iter()
            .for_each(|to| drop(reach(&client, &Dial::new(kind, *to), &["pod-a"])));
    }
}

/// At the root our programs would catch every socket of the machine that the tests run on.
#[test]
fn nothing_of_ours_is_at_the_root_cgroup() {
    let root = beeline_harness::cgroup_mount().unwrap();
    let ours: Vec<_> = attached(&root).unwrap().into_iter().filter(is_ours).collect();
    assert!(ours.is_empty(), "attached at {}: {ours:?}; `beeline cleanup` detaches", root.display());
    // The question is a real one: where our programs are, it finds them.
    let ground = Ground::on(Lab::new(0).unwrap(), &[], &[]);
    assert_eq!(hooks(ground.lab.cgroup().path()), HOOKS);
}
