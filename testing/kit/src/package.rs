//! Debian packages, unpacked into the cache. Nothing is installed: the machine gets no daemon, and the images get a root
//! file system that does not depend on what the machine has.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use crate::{
    cache::{Cache, Stamp},
    call,
    progress::{say, step},
};

/// What runs on the nodes and in the control plane, with the machine's libraries.
const NODE: [&str; 5] = ["busybox-static", "containerd", "containernetworking-plugins", "etcd-server", "runc"];
/// What a container may call: upstream's tests want a good deal, our own agent its libraries.
const IMAGE: [&str; 32] = [
    "bash",
    "bind9-dnsutils",
    "ca-certificates",
    "conntrack",
    "coreutils",
    "curl",
    "dash",
    "diffutils",
    "findutils",
    "gawk",
    "grep",
    "gzip",
    "hostname",
    "iperf",
    "iproute2",
    "iptables",
    "iputils-ping",
    "libc-bin",
    "libelf1",
    "net-tools",
    "netbase",
    "netcat-openbsd",
    "nftables",
    "procps",
    "sed",
    "socat",
    "tar",
    "tcpdump",
    "unbound",
    "util-linux",
    "wget",
    "zlib1g",
];

pub fn unpack_for_nodes(cache: &Cache) -> Result<()> {
    once(cache, "debian", &NODE, |debs| {
        let mut apt = Command::new("apt-get");
        call::run(apt.args(["-qq", "-o", "APT::Sandbox::User=root", "download"]).args(NODE).current_dir(debs))?;
        Ok(())
    })
}

/// What the images are made of, for whoever must make them again when it changes.
pub fn of_images() -> String {
    IMAGE.join(" ")
}

/// All that the packages need comes along, as if nothing were installed yet.
pub fn unpack_for_images(cache: &Cache) -> Result<()> {
    once(cache, "base", &IMAGE, |debs| {
        fs::create_dir_all(debs.join("partial"))?;
        fs::write(debs.join("status"), "")?;
        let mut apt = Command::new("apt-get");
        apt.args(["-qq", "-y", "-o", "APT::Sandbox::User=root", "-o", "Debug::NoLocking=1"]);
        apt.args(["-o".into(), format!("Dir::State::status={}", debs.join("status").display())]);
        apt.args(["-o".into(), format!("Dir::Cache::archives={}", debs.display())]);
        apt.args(["--no-install-recommends", "--download-only", "install"]).args(IMAGE);
        call::run(&mut apt)?;
        Ok(())
    })
}

fn once(cache: &Cache, name: &str, packages: &[&str], download: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let stamp = Stamp::new(cache, name, &packages.join(" "))?;
    if stamp.holds() && cache.path(name).exists() {
        say(format!("{name}: {} packages are there", packages.len()));
        return Ok(());
    }
    step(&format!("{name}: {} packages and what they need", packages.len()), || {
        call::run(Command::new("apt-get").args(["-qq", "update"]))?;
        let debs = cache.fresh(&format!("{name}.debs"))?;
        download(&debs).context("download Debian packages")?;
        unpack(&debs, &cache.fresh(name)?)?;
        fs::remove_dir_all(&debs).context("remove the downloads")
    })?;
    stamp.write()
}

fn unpack(debs: &Path, root: &Path) -> Result<()> {
    let entries = fs::read_dir(debs)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<PathBuf>>>()?;
    for deb in entries.iter().filter(|path| path.extension().is_some_and(|extension| extension == "deb")) {
        call::run(Command::new("dpkg").arg("-x").arg(deb).arg(root))?;
    }
    Ok(())
}
