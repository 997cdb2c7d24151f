//! The machine that a guest sees.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

use super::{Link, passt, seed};
use crate::{cache::Cache, call, network::TAP, part::Part};

pub const AGENT: &str = "agent.sock";
pub const MONITOR: &str = "monitor.sock";
/// What the monitor calls its network card.
pub const NETWORK: &str = "net";
const DISK: &str = "disk.img";

/// What scripts/guest.sh made.
fn made(name: &str) -> Result<PathBuf> {
    let path = Cache::open()?.root().with_file_name("guest").join(name);
    ensure!(path.exists(), "{} is missing: run scripts/guest.sh", path.display());
    Ok(path)
}

/// It is never changed in place, and its holes stay holes.
pub fn copy_disk(dir: &Path) -> Result<()> {
    let mut copy = Command::new("cp");
    call::run(copy.args(["--sparse=always", "--reflink=auto"]).arg(made(DISK)?).arg(dir.join(DISK)))?;
    Ok(())
}

pub fn part(link: Link, dir: &Path) -> Result<Part> {
    let qemu = "/usr/bin/qemu-system-x86_64";
    ensure!(Path::new(qemu).exists(), "{qemu} is missing: run scripts/setup.sh guest");
    let words = [vec![qemu.to_owned()], board(dir)?, disks(dir), doors(dir), network(link, dir)].concat();
    Part::new(link.place(), "guest", words)
}

/// What is switched off of the processor, and why, is said in scripts/kernels.sh: TCG has its own faults.
fn board(dir: &Path) -> Result<Vec<String>> {
    let console = format!("file:{}", dir.join("console.log").display());
    let (kernel, initrd) = (text(&made("vmlinuz")?)?, text(&made("initrd.img")?)?);
    let fixed = "-accel tcg,thread=multi -cpu max,la57=off,cx16=off -smp 2 -m 1024 -nodefaults -no-user-config -display none \
                 -device virtio-rng-pci";
    let mut words: Vec<String> = fixed.split_whitespace().map(str::to_owned).collect();
    let command_line = "console=ttyS0 root=/dev/vda rw quiet oops=panic panic=-1";
    words.extend(
        ["-serial", &console, "-kernel", &kernel, "-initrd", &initrd, "-append", command_line].map(str::to_owned),
    );
    Ok(words)
}

/// What the guest has written must outlive the guest, not this machine.
fn disks(dir: &Path) -> Vec<String> {
    let disk = |name: &str, more: &str| {
        ["-drive".to_owned(), format!("file={},format=raw,if=virtio,{more}", dir.join(name).display())]
    };
    [disk(DISK, "cache=unsafe"), disk(seed::DISK, "readonly=on")].concat()
}

fn doors(dir: &Path) -> Vec<String> {
    let socket = |name: &str| format!("{},server=on,wait=off", dir.join(name).display());
    vec![
        "-device".into(),
        "virtio-serial-pci".into(),
        "-chardev".into(),
        format!("socket,id=agent,path={}", socket(AGENT)),
        "-device".into(),
        "virtserialport,chardev=agent,name=org.qemu.guest_agent.0".into(),
        "-qmp".into(),
        format!("unix:{}", socket(MONITOR)),
    ]
}

fn network(link: Link, dir: &Path) -> Vec<String> {
    let wire = match link {
        Link::Switch => format!("tap,id={NETWORK},ifname={TAP},script=no,downscript=no"),
        Link::Passt(_) => {
            format!("stream,id={NETWORK},server=off,addr.type=unix,addr.path={}", dir.join(passt::SOCKET).display())
        }
    };
    ["-netdev", &wire, "-device", &format!("virtio-net-pci,netdev={NETWORK},mac=02:00:00:00:02:00")]
        .map(str::to_owned)
        .into()
}

fn text(path: &Path) -> Result<String> {
    path.to_str().map(str::to_owned).with_context(|| format!("{} is no text", path.display()))
}
