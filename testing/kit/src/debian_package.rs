//! Unpacks Debian packages into the cache. Nothing is installed on the machine, and the images' root file system does
//! not depend on what is installed there.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use crate::{
    cache::{BuildStamp, Cache},
    progress::{report, step},
    subprocess,
};

/// Packages whose programs run on the nodes and in the control plane, with the machine's libraries.
const NODE: [&str; 5] = ["busybox-static", "containerd", "containernetworking-plugins", "etcd-server", "runc"];
/// Packages of the base image: programs that upstream's tests run, and the libraries of Beeline's agent.
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
    unpack_once(cache, "debian", &NODE, |debs| {
        let mut apt = Command::new("apt-get");
        subprocess::run(apt.args(["-qq", "-o", "APT::Sandbox::User=root", "download"]).args(NODE).current_dir(debs))?;
        Ok(())
    })
}

/// Packages of the base image, as input of the image store's build stamp.
pub fn image_packages() -> String {
    IMAGE.join(" ")
}

/// Unpacks the image packages with all their dependencies, as if nothing were installed on the machine.
pub fn unpack_for_images(cache: &Cache) -> Result<()> {
    unpack_once(cache, "base", &IMAGE, |debs| {
        fs::create_dir_all(debs.join("partial"))?;
        fs::write(debs.join("status"), "")?;
        let mut apt = Command::new("apt-get");
        apt.args(["-qq", "-y", "-o", "APT::Sandbox::User=root", "-o", "Debug::NoLocking=1"]);
        apt.args(["-o".into(), format!("Dir::State::status={}", debs.join("status").display())]);
        apt.args(["-o".into(), format!("Dir::Cache::archives={}", debs.display())]);
        apt.args(["--no-install-recommends", "--download-only", "install"]).args(IMAGE);
        subprocess::run(&mut apt)?;
        Ok(())
    })
}

fn unpack_once(cache: &Cache, name: &str, packages: &[&str], download: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let stamp = BuildStamp::new(cache, name, &packages.join(" "))?;
    if stamp.is_current() && cache.path(name).exists() {
        report(format!("{name}: {} packages are already unpacked", packages.len()));
        return Ok(());
    }
    step(&format!("{name}: {} packages and their dependencies", packages.len()), || {
        subprocess::run(Command::new("apt-get").args(["-qq", "update"]))?;
        let debs = cache.fresh(&format!("{name}.debs"))?;
        download(&debs).context("cannot download Debian packages")?;
        unpack(&debs, &cache.fresh(name)?)?;
        fs::remove_dir_all(&debs).context("cannot remove the downloads")
    })?;
    stamp.write()
}

fn unpack(debs: &Path, root: &Path) -> Result<()> {
    let entries = fs::read_dir(debs)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<PathBuf>>>()?;
    for deb in entries.iter().filter(|path| path.extension().is_some_and(|extension| extension == "deb")) {
        subprocess::run(Command::new("dpkg").arg("-x").arg(deb).arg(root))?;
    }
    Ok(())
}
