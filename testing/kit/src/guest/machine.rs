//! The virtual hardware of a guest: the command line of qemu.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

use super::{GuestLink, passt, seed};
use crate::{cache::Cache, component::Component, network::TAP, subprocess};

pub const AGENT: &str = "agent.sock";
pub const MONITOR: &str = "monitor.sock";
/// Id of the network card in QEMU's monitor.
pub const NETWORK: &str = "net";
const DISK: &str = "disk.img";

/// Path of a file that scripts/guest.sh built.
fn built_file(name: &str) -> Result<PathBuf> {
    let path = Cache::open()?.root().with_file_name("guest").join(name);
    ensure!(path.exists(), "{} is missing: run scripts/guest.sh", path.display());
    Ok(path)
}

/// Copies the disk as a sparse file. The original is never changed.
pub fn copy_disk(dir: &Path) -> Result<()> {
    let mut copy = Command::new("cp");
    subprocess::run(copy.args(["--sparse=always", "--reflink=auto"]).arg(built_file(DISK)?).arg(dir.join(DISK)))?;
    Ok(())
}

pub fn component(link: GuestLink, dir: &Path) -> Result<Component> {
    let qemu = "/usr/bin/qemu-system-x86_64";
    ensure!(Path::new(qemu).exists(), "{qemu} is missing: run scripts/setup.sh guest");
    let arguments = [vec![qemu.to_owned()], board(dir)?, disks(dir), sockets(dir), network(link, dir)].concat();
    Component::new(link.location(), "guest", arguments)
}

/// The CPU features la57 and cx16 are off because of bugs in TCG; see scripts/kernels.sh.
fn board(dir: &Path) -> Result<Vec<String>> {
    let console = format!("file:{}", dir.join("console.log").display());
    let (kernel, initrd) = (text(&built_file("vmlinuz")?)?, text(&built_file("initrd.img")?)?);
    let fixed = "-accel tcg,thread=multi -cpu max,la57=off,cx16=off -smp 2 -m 1024 -nodefaults -no-user-config -display none \
                 -device virtio-rng-pci";
    let mut arguments: Vec<String> = fixed.split_whitespace().map(str::to_owned).collect();
    let command_line = "console=ttyS0 root=/dev/vda rw quiet oops=panic panic=-1";
    arguments.extend(
        ["-serial", &console, "-kernel", &kernel, "-initrd", &initrd, "-append", command_line].map(str::to_owned),
    );
    Ok(arguments)
}

/// The disk uses cache=unsafe: its content has to survive a reset of the guest, but not a crash of this machine.
fn disks(dir: &Path) -> Vec<String> {
    let disk = |name: &str, more: &str| {
        ["-drive".to_owned(), format!("file={},format=raw,if=virtio,{more}", dir.join(name).display())]
    };
    [disk(DISK, "cache=unsafe"), disk(seed::DISK, "readonly=on")].concat()
}

fn sockets(dir: &Path) -> Vec<String> {
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

fn network(link: GuestLink, dir: &Path) -> Vec<String> {
    let netdev = match link {
        GuestLink::Bridge => format!("tap,id={NETWORK},ifname={TAP},script=no,downscript=no"),
        GuestLink::Passt(_) => {
            format!("stream,id={NETWORK},server=off,addr.type=unix,addr.path={}", dir.join(passt::SOCKET).display())
        }
    };
    ["-netdev", &netdev, "-device", &format!("virtio-net-pci,netdev={NETWORK},mac=02:00:00:00:02:00")]
        .map(str::to_owned)
        .into()
}

fn text(path: &Path) -> Result<String> {
    path.to_str().map(str::to_owned).with_context(|| format!("{} is not UTF-8", path.display()))
}
