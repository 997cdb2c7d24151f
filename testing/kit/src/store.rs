//! The images of every new cluster, and a copy of containerd's files with all of them unpacked: a node that starts from
//! the copy need not import anything.

use std::{
    fs,
    os::unix::{fs::symlink, net::UnixStream},
    path::Path,
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::{
    cache::{Cache, Stamp},
    call, certificate,
    image::{Image, Layer, LayerFile, write_archive},
    node, package,
    program::KUBERNETES,
    progress::{say, step},
    wait::{self, Patience},
};

const TEST_IMAGES: &str = "registry.k8s.io/e2e-test-images";
/// Raised when the making of images changes, so that caches follow.
const EDITION: &str = "1";

pub fn build(cache: &Cache) -> Result<()> {
    let stamp = Stamp::new(cache, "store", &format!("{EDITION} {} {}", KUBERNETES.version(), package::of_images()))?;
    package::unpack_for_images(cache)?;
    if stamp.holds() && cache.store().exists() {
        say("images: there");
        return Ok(());
    }
    step("images", || make_images(cache))?;
    step("image store", || fill(cache))?;
    stamp.write()
}

fn make_images(cache: &Cache) -> Result<()> {
    let dir = cache.fresh("image")?;
    finish_base(&cache.path("base"))?;
    let mut base = LayerFile::create(&dir.join("base.layer"))?;
    base.tree(&cache.path("base"))?;
    let base = base.finish()?;
    let images = [pause(cache, &dir)?, busybox(cache, &dir)?, agnhost(cache, &dir, base)?, issue_74839(cache, &dir)?];
    write_archive(&images, &dir.join("cluster.tar"))
}

/// What the packages' own scripts would have done.
fn finish_base(base: &Path) -> Result<()> {
    for waste in ["usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info", "usr/share/zoneinfo"] {
        let _ = fs::remove_dir_all(base.join(waste));
    }
    for dir in ["tmp", "proc", "sys", "dev", "run", "root", "etc", "uploads", "var/tmp", "usr/local/bin"] {
        fs::create_dir_all(base.join(dir))?;
    }
    let links = [
        ("bin/sh", "dash"),
        ("bin/nc", "nc.openbsd"),
        ("usr/bin/awk", "gawk"),
        ("usr/local/bin/iperf", "/usr/bin/iperf"),
        ("usr/sbin/iptables", "iptables-nft"),
        ("usr/sbin/iptables-save", "iptables-nft-save"),
        ("usr/sbin/iptables-restore", "iptables-nft-restore"),
        ("usr/sbin/ip6tables", "ip6tables-nft"),
        ("usr/sbin/ip6tables-save", "ip6tables-nft-save"),
        ("usr/sbin/ip6tables-restore", "ip6tables-nft-restore"),
    ];
    for (path, target) in links.map(|(path, target)| (base.join(path), target)) {
        let _ = fs::remove_file(&path);
        symlink(target, &path).with_context(|| format!("link {}", path.display()))?;
    }
    accounts(base)?;
    patient_wget(base)?;
    call::run(Command::new("chroot").arg(base).arg("/sbin/ldconfig"))?;
    call::run(Command::new("chmod").arg("1777").arg(base.join("tmp")).arg(base.join("var/tmp")))?;
    Ok(())
}

/// The users and groups that upstream's image has.
fn accounts(base: &Path) -> Result<()> {
    let passwd = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n\
                  user-defined-in-image:x:1000:1000::/:/bin/sh\n";
    let group = "root:x:0:\nnogroup:x:65534:\nuser-defined-in-image:x:1000:\n\
                 group-defined-in-image:x:50000:user-defined-in-image\n";
    fs::write(base.join("etc/passwd"), passwd)?;
    fs::write(base.join("etc/group"), group)?;
    fs::write(base.join("etc/nsswitch.conf"), "hosts: files dns\npasswd: files\ngroup: files\n")?;
    Ok(())
}

/// The tests expect busybox' wget, which tries once. (Debian's static busybox cannot look up names.)
fn patient_wget(base: &Path) -> Result<()> {
    let (plain, gnu) = (base.join("usr/bin/wget"), base.join("usr/bin/wget.gnu"));
    if !gnu.exists() {
        fs::rename(&plain, &gnu)?;
    }
    fs::write(&plain, "#!/bin/sh\nexec /usr/bin/wget.gnu -t 1 \"$@\"\n")?;
    call::run(Command::new("chmod").arg("755").arg(&plain))?;
    Ok(())
}

fn pause(cache: &Cache, dir: &Path) -> Result<Image> {
    let mut layer = LayerFile::create(&dir.join("pause.layer"))?;
    layer.program(&cache.program("pause"), "pause")?;
    let tags = ["3.10.1", "3.10", "3.9"].map(|version| format!("registry.k8s.io/pause:{version}"));
    let settings = json!({"Entrypoint": ["/pause"], "User": "65535:65535"});
    Ok(Image { tags: tags.to_vec(), settings, layers: vec![layer.finish()?] })
}

fn applets(cache: &Cache) -> Result<Vec<String>> {
    let list = call::run(Command::new(cache.debian("bin/busybox")).arg("--list"))?;
    Ok(list.split_whitespace().filter(|applet| *applet != "busybox").map(str::to_owned).collect())
}

fn busybox(cache: &Cache, dir: &Path) -> Result<Image> {
    let mut layer = LayerFile::create(&dir.join("busybox.layer"))?;
    for (path, mode) in [("bin", 0o755), ("etc", 0o755), ("tmp", 0o1777)] {
        layer.directory(path, mode)?;
    }
    layer.program(&cache.debian("bin/busybox"), "bin/busybox")?;
    for applet in applets(cache)? {
        layer.link(&format!("bin/{applet}"), "busybox")?;
    }
    let tags = vec![format!("{TEST_IMAGES}/busybox:1.37.0-1")];
    Ok(Image { tags, settings: json!({"Cmd": ["sh"]}), layers: vec![layer.finish()?] })
}

/// Upstream's image is Alpine: every applet of busybox that Debian has no program for is added.
fn agnhost(cache: &Cache, dir: &Path, base: Layer) -> Result<Image> {
    let mut layer = LayerFile::create(&dir.join("agnhost.layer"))?;
    layer.program(&cache.program("agnhost"), "agnhost")?;
    layer.link("agnhost-2", "agnhost")?;
    let pair = certificate::localhost()?;
    layer.text(&pair.certificate, "localhost.crt")?;
    layer.text(&pair.key, "localhost.key")?;
    // Below /usr: Debian's /bin is a link to it where the packages are newer.
    layer.program(&cache.debian("bin/busybox"), "usr/bin/busybox")?;
    let root = cache.path("base");
    let has = |applet: &str| {
        ["bin", "sbin", "usr/bin", "usr/sbin"].iter().any(|d| root.join(d).join(applet).symlink_metadata().is_ok())
    };
    for applet in applets(cache)?.iter().filter(|applet| !has(applet)) {
        layer.link(&format!("usr/bin/{applet}"), "busybox")?;
    }
    // The last two stand in for images that the tests only want some of these programs from.
    let tags = ["agnhost:2.59", "agnhost:2.55", "jessie-dnsutils:1.7"].map(|name| format!("{TEST_IMAGES}/{name}"));
    let filter = "registry.k8s.io/build-image/distroless-iptables:v0.9.6".to_owned();
    let settings = json!({"Entrypoint": ["/agnhost"], "Cmd": ["pause"]});
    Ok(Image { tags: [&tags[..], &[filter]].concat(), settings, layers: vec![base, layer.finish()?] })
}

fn issue_74839(cache: &Cache, dir: &Path) -> Result<Image> {
    let name = "regression-issue-74839";
    let mut layer = LayerFile::create(&dir.join(format!("{name}.layer")))?;
    layer.program(&cache.program(name), name)?;
    let tags = vec![format!("{TEST_IMAGES}/{name}:1.4")];
    Ok(Image { tags, settings: json!({"Entrypoint": [format!("/{name}")]}), layers: vec![layer.finish()?] })
}

/// An archive with one program on the base of all images, ready for import.
pub fn make_image(cache: &Cache, tag: &str, binary: &Path, with: &[String]) -> Result<std::path::PathBuf> {
    let program = binary.file_name().context("a program has a name")?.to_string_lossy().into_owned();
    let dir = cache.path("image");
    let base = Layer::open(&dir.join("base.layer")).context("run `kit build`")?;
    let mut layer = LayerFile::create(&dir.join(format!("{program}.layer")))?;
    layer.program(binary, &format!("usr/local/bin/{program}"))?;
    for pair in with {
        let (file, path) = pair.split_once('=').with_context(|| format!("{pair}: FILE=PATH is meant"))?;
        layer.program(Path::new(file), path.trim_start_matches('/'))?;
    }
    let settings = json!({"Entrypoint": [format!("/usr/local/bin/{program}")]});
    let image = Image { tags: vec![tag.to_owned()], settings, layers: vec![base, layer.finish()?] };
    let archive = dir.join(format!("{program}.tar"));
    write_archive(&[image], &archive)?;
    Ok(archive)
}

/// A containerd that does nothing but import, in a mount namespace that ends with it.
fn fill(cache: &Cache) -> Result<()> {
    let (unfinished, place) = (cache.fresh("store.unfinished")?, tempfile::tempdir()?);
    let settings = node::containerd_settings(cache, &unfinished, &place.path().display().to_string(), None);
    fs::write(place.path().join("containerd.toml"), settings)?;
    let mut containerd = start(cache, place.path())?;
    let imported = import(cache, place.path(), &mut containerd);
    let _ = kill_process(Pid::from_child(&containerd), Signal::TERM);
    containerd.wait()?;
    imported?;
    cache.fresh("store").and_then(|old| Ok(fs::remove_dir(old)?))?;
    fs::rename(unfinished, cache.store()).context("put the store in its place")
}

fn start(cache: &Cache, place: &Path) -> Result<Child> {
    let log = fs::File::create(cache.log("build-store"))?;
    let mut command = Command::new("unshare");
    command.args(["--mount", "--"]).arg(cache.debian("usr/bin/containerd"));
    command.arg("--config").arg(place.join("containerd.toml"));
    command.env("PATH", cache.search_path()?).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    command.spawn().context("start containerd")
}

fn import(cache: &Cache, place: &Path, containerd: &mut Child) -> Result<()> {
    let (socket, log) = (place.join("containerd.sock"), cache.log("build-store"));
    wait::until(Patience::new("containerd", 30, log.clone()), || match containerd.try_wait()? {
        Some(status) => bail!("containerd ended ({status}): read {}", log.display()),
        None => Ok(UnixStream::connect(&socket).ok().map(drop)),
    })?;
    let mut command = Command::new(cache.debian("usr/bin/ctr"));
    command.arg("--address").arg(&socket).args(["-n", "k8s.io", "images", "import"]);
    call::run_logged(command.arg(cache.path("image/cluster.tar")), &log)
}
