//! Programs of other products at the same hooks, and a check that no test attaches to the root cgroup.

use crate::address_kinds::{TRANSPORTS, address_forms, assert_resolved};
use crate::fixture::{AgentFixture, ManifestFile};
use beeline_datapath::query::{attached, is_ours};
use beeline_harness::{DialKind, DialRequest, TestNetwork};
use libbpf_rs::{Link, MapCore, MapFlags, ObjectBuilder, libbpf_sys};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::process::Command;

/// A program of another product at connect4.
struct ForeignProgram {
    object: libbpf_rs::Object,
    _link: Option<Link>,
}

impl ForeignProgram {
    fn load(dir: &Path) -> ForeignProgram {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let clang = std::env::var("BEELINE_CLANG").unwrap_or_else(|_| "clang-19".to_owned());
        let (source, path) = (here.join("tests/sockets/foreign_program.bpf.c"), dir.join("foreign_program.bpf.o"));
        let built = Command::new(clang)
            .args(["-target", "bpf", "-O2", "-g", "-nostdinc", "-mcpu=v3", "-Wall", "-Werror", "-c"])
            .args([source, "-o".into(), path.clone()])
            .status();
        assert!(built.unwrap().success());
        let object = ObjectBuilder::default().open_file(&path).unwrap().load().unwrap();
        ForeignProgram { object, _link: None }
    }

    /// Attaches by program, as Calico and older agents do.
    fn attach(self, cgroup: &Path) -> ForeignProgram {
        let dir = File::open(cgroup).unwrap();
        let program = self.object.progs_mut().next().unwrap().as_fd().as_raw_fd();
        let kind = libbpf_sys::BPF_CGROUP_INET4_CONNECT;
        // SAFETY: only numbers are passed, and both descriptors are open.
        let code =
            unsafe { libbpf_sys::bpf_prog_attach(program, dir.as_raw_fd(), kind, libbpf_sys::BPF_F_ALLOW_MULTI) };
        assert_eq!(code, 0, "attach by program");
        self
    }

    /// Attaches by link, as newer agents do.
    fn link(self, cgroup: &Path) -> ForeignProgram {
        let dir = File::open(cgroup).unwrap();
        let link = self.object.progs_mut().next().unwrap().attach_cgroup(dir.as_raw_fd()).unwrap();
        ForeignProgram { _link: Some(link), ..self }
    }

    fn dials(&self) -> u64 {
        let map = self.object.maps().next().unwrap();
        u64::from_ne_bytes(map.lookup(&[0; 4], MapFlags::ANY).unwrap().unwrap().try_into().unwrap())
    }
}

/// Repeats what Calico's agent Felix does at its start if connect-time load balancing is off: it queries the programs that
/// are attached to the cgroup, and detaches the first program of each hook, by program. Returns the number of detached
/// programs.
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
        let first = all.iter().find(|p| p.hook == hook).expect("a program is attached");
        // SAFETY: only numbers are passed. The descriptor is closed at the end of the process.
        let code = unsafe {
            let program = libbpf_sys::bpf_prog_get_fd_by_id(first.id);
            assert!(program >= 0, "{first:?}");
            libbpf_sys::bpf_prog_detach2(program, dir.as_raw_fd(), kind)
        };
        detached += usize::from(code == 0);
    }
    detached
}

/// The hooks with a program of Beeline.
fn own_hooks(cgroup: &Path) -> Vec<&'static str> {
    attached(cgroup).unwrap().iter().filter(|p| is_ours(p)).map(|p| p.hook).collect()
}

const HOOKS: [&str; 9] = [
    "connect4",
    "connect6",
    "sendmsg4",
    "sendmsg6",
    "recvmsg4",
    "recvmsg6",
    "getpeername4",
    "getpeername6",
    "sock_release",
];

#[test]
fn programs_before_and_after_ours_see_every_dial() {
    let network = TestNetwork::new(1).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let cgroup = network.cgroup().path().to_owned();
    let before = ForeignProgram::load(dir.path()).attach(&cgroup);
    let web = ManifestFile::service("web", 10).backed_by(&[(network.pod(0), "node-1")]);
    let mut fixture = AgentFixture::with_manifests(network, &[web], &[]);
    let after = ForeignProgram::load(dir.path()).attach(&cgroup);
    let linked = ForeignProgram::load(dir.path()).link(&cgroup);
    let _server = fixture.network.pod(0).serve(8080).unwrap();
    let client = fixture.network.node().client().unwrap();
    let dial = || {
        for kind in TRANSPORTS {
            address_forms("10.96.0.10", "fd00:96::10", 80)
                .iter()
                .for_each(|to| drop(assert_resolved(&client, &DialRequest::new(kind, *to), &["pod-a"])));
        }
    };
    for _ in 0..3 {
        let dials = [&before, &after, &linked].map(ForeignProgram::dials);
        dial();
        // Two dials run connect4: TCP and connected UDP over IPv4.
        assert_eq!([&before, &after, &linked].map(ForeignProgram::dials), dials.map(|n| n + 2));
        assert_eq!(own_hooks(&cgroup), HOOKS);
        // An agent that starts again neither attaches twice nor changes the order.
        fixture.kill();
        dial();
        fixture.start_again();
    }
    // Felix detaches the first program, which may be the foreign one, but never one of ours.
    let detached = replay_felix(&cgroup);
    assert!(detached <= 1, "only the foreign program that was attached by program");
    replay_felix(&cgroup);
    assert_eq!(own_hooks(&cgroup), HOOKS);
    dial();
}

#[test]
fn felix_cannot_detach_our_programs() {
    let network = TestNetwork::new(1).unwrap();
    let web = ManifestFile::service("web", 10).backed_by(&[(network.pod(0), "node-1")]);
    let fixture = AgentFixture::with_manifests(network, &[web], &[]);
    let _server = fixture.network.pod(0).serve(8080).unwrap();
    let client = fixture.network.node().client().unwrap();
    let cgroup = fixture.network.cgroup().path().to_owned();
    assert_eq!(own_hooks(&cgroup), HOOKS);
    assert_eq!(replay_felix(&cgroup), 0, "links cannot be detached by program");
    assert_eq!(own_hooks(&cgroup), HOOKS);
    for kind in DialKind::TCP.into_iter().chain(DialKind::UDP) {
        address_forms("10.96.0.10", "fd00:96::10", 80)
            .iter()
            .for_each(|to| drop(assert_resolved(&client, &DialRequest::new(kind, *to), &["pod-a"])));
    }
}

/// At the root cgroup the programs would handle every socket of the machine that runs the tests.
#[test]
fn no_program_is_attached_to_the_root_cgroup() {
    let root = beeline_harness::cgroup_mount().unwrap();
    let ours: Vec<_> = attached(&root).unwrap().into_iter().filter(is_ours).collect();
    assert!(ours.is_empty(), "attached to {}: {ours:?}; detach with `beeline cleanup`", root.display());
    // The check works: it finds the programs in the cgroup of a test.
    let fixture = AgentFixture::with_manifests(TestNetwork::new(0).unwrap(), &[], &[]);
    assert_eq!(own_hooks(fixture.network.cgroup().path()), HOOKS);
}
