//! Container images of the cluster, and a copy of containerd's files with all images unpacked. A node that starts from
//! the copy does not have to import images.

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
    cache::{BuildStamp, Cache},
    certificate, debian_package,
    image::{Image, Layer, LayerBuilder, write_archive},
    node,
    program::KUBERNETES,
    progress::{report, step},
    subprocess,
    wait::{self, Timeout},
};

const TEST_IMAGES: &str = "registry.k8s.io/e2e-test-images";
/// Incremented when the way images are built changes, so that caches are rebuilt.
const FORMAT: &str = "1";

pub fn build(cache: &Cache) -> Result<()> {
    let stamp = BuildStamp::new(
        cache,
        "store",
        &format!("{FORMAT} {} {}", KUBERNETES.version(), debian_package::image_packages()),
    )?;
    debian_package::unpack_for_images(cache)?;
    if stamp.is_current() && cache.store().exists() {
        report("images: already built");
        return Ok(());
    }
    step("images", || make_images(cache))?;
    step("image store", || fill_store(cache))?;
    stamp.write()
}

fn make_images(cache: &Cache) -> Result<()> {
    let dir = cache.fresh("image")?;
    finish_base(&cache.path("base"))?;
    let mut base = LayerBuilder::create(&dir.join("base.layer"))?;
    base.tree(&cache.path("base"))?;
    let base = base.finish()?;
    let images = [pause(cache, &dir)?, busybox(cache, &dir)?, agnhost(cache, &dir, base)?, issue_74839(cache, &dir)?];
    write_archive(&images, &dir.join("cluster.tar"))
}

/// Does what the packages' maintainer scripts would do.
fn finish_base(base: &Path) -> Result<()> {
    for unused in ["usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info", "usr/share/zoneinfo"] {
        let _ = fs::remove_dir_all(base.join(unused));
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
        symlink(target, &path).with_context(|| format!("cannot link {}", path.display()))?;
    }
    accounts(base)?;
    single_try_wget(base)?;
    subprocess::run(Command::new("chroot").arg(base).arg("/sbin/ldconfig"))?;
    subprocess::run(Command::new("chmod").arg("1777").arg(base.join("tmp")).arg(base.join("var/tmp")))?;
    Ok(())
}

/// Writes the users and groups of upstream's image.
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

/// The tests expect busybox' wget, which tries once. Debian's static busybox cannot look up names, so GNU wget is
/// wrapped.
fn single_try_wget(base: &Path) -> Result<()> {
    let (plain, gnu) = (base.join("usr/bin/wget"), base.join("usr/bin/wget.gnu"));
    if !gnu.exists() {
        fs::rename(&plain, &gnu)?;
    }
    fs::write(&plain, "#!/bin/sh\nexec /usr/bin/wget.gnu -t 1 \"$@\"\n")?;
    subprocess::run(Command::new("chmod").arg("755").arg(&plain))?;
    Ok(())
}

fn pause(cache: &Cache, dir: &Path) -> Result<Image> {
    let mut layer = LayerBuilder::create(&dir.join("pause.layer"))?;
    layer.program(&cache.program("pause"), "pause")?;
    let tags = ["3.10.1", "3.10", "3.9"].map(|version| format!("registry.k8s.io/pause:{version}"));
    let settings = json!({"Entrypoint": ["/pause"], "User": "65535:65535"});
    Ok(Image { tags: tags.to_vec(), settings, layers: vec![layer.finish()?] })
}

fn applets(cache: &Cache) -> Result<Vec<String>> {
    let list = subprocess::run(Command::new(cache.debian("bin/busybox")).arg("--list"))?;
    Ok(list.split_whitespace().filter(|applet| *applet != "busybox").map(str::to_owned).collect())
}

fn busybox(cache: &Cache, dir: &Path) -> Result<Image> {
    let mut layer = LayerBuilder::create(&dir.join("busybox.layer"))?;
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

/// Upstream's image is based on Alpine, so every busybox applet without a Debian program is added.
fn agnhost(cache: &Cache, dir: &Path, base: Layer) -> Result<Image> {
    let mut layer = LayerBuilder::create(&dir.join("agnhost.layer"))?;
    layer.program(&cache.program("agnhost"), "agnhost")?;
    layer.link("agnhost-2", "agnhost")?;
    let pair = certificate::localhost()?;
    layer.text(&pair.certificate, "localhost.crt")?;
    layer.text(&pair.key, "localhost.key")?;
    // Below /usr, because /bin is a symbolic link in newer Debian packages.
    layer.program(&cache.debian("bin/busybox"), "usr/bin/busybox")?;
    let root = cache.path("base");
    let has = |applet: &str| {
        ["bin", "sbin", "usr/bin", "usr/sbin"].iter().any(|d| root.join(d).join(applet).symlink_metadata().is_ok())
    };
    for applet in applets(cache)?.iter().filter(|applet| !has(applet)) {
        layer.link(&format!("usr/bin/{applet}"), "busybox")?;
    }
    // The last two replace images from which the tests need only some of these programs.
    let tags = ["agnhost:2.59", "agnhost:2.55", "jessie-dnsutils:1.7"].map(|name| format!("{TEST_IMAGES}/{name}"));
    let iptables = "registry.k8s.io/build-image/distroless-iptables:v0.9.6".to_owned();
    let settings = json!({"Entrypoint": ["/agnhost"], "Cmd": ["pause"]});
    Ok(Image { tags: [&tags[..], &[iptables]].concat(), settings, layers: vec![base, layer.finish()?] })
}

fn issue_74839(cache: &Cache, dir: &Path) -> Result<Image> {
    let name = "regression-issue-74839";
    let mut layer = LayerBuilder::create(&dir.join(format!("{name}.layer")))?;
    layer.program(&cache.program(name), name)?;
    let tags = vec![format!("{TEST_IMAGES}/{name}:1.4")];
    Ok(Image { tags, settings: json!({"Entrypoint": [format!("/{name}")]}), layers: vec![layer.finish()?] })
}

/// Builds an image archive with one program on the base layer of all images.
pub fn make_image(cache: &Cache, tag: &str, binary: &Path, with: &[String]) -> Result<std::path::PathBuf> {
    let program =
        binary.file_name().context("the path of the program has no file name")?.to_string_lossy().into_owned();
    let dir = cache.path("image");
    let base = Layer::open(&dir.join("base.layer")).context("cannot open the base layer: run `kit build`")?;
    let mut layer = LayerBuilder::create(&dir.join(format!("{program}.layer")))?;
    layer.program(binary, &format!("usr/local/bin/{program}"))?;
    for pair in with {
        let (file, path) = pair.split_once('=').with_context(|| format!("{pair}: expected FILE=PATH"))?;
        layer.program(Path::new(file), path.trim_start_matches('/'))?;
    }
    let settings = json!({"Entrypoint": [format!("/usr/local/bin/{program}")]});
    let image = Image { tags: vec![tag.to_owned()], settings, layers: vec![base, layer.finish()?] };
    let archive = dir.join(format!("{program}.tar"));
    write_archive(&[image], &archive)?;
    Ok(archive)
}

/// Imports the images with a temporary containerd in a mount namespace of its own.
fn fill_store(cache: &Cache) -> Result<()> {
    let (unfinished, dir) = (cache.fresh("store.unfinished")?, tempfile::tempdir()?);
    let settings = node::containerd_settings(cache, &unfinished, &dir.path().display().to_string(), None);
    fs::write(dir.path().join("containerd.toml"), settings)?;
    let mut containerd = start(cache, dir.path())?;
    let imported = import(cache, dir.path(), &mut containerd);
    let _ = kill_process(Pid::from_child(&containerd), Signal::TERM);
    containerd.wait()?;
    imported?;
    cache.fresh("store").and_then(|old| Ok(fs::remove_dir(old)?))?;
    fs::rename(unfinished, cache.store()).context("cannot rename the image store")
}

fn start(cache: &Cache, dir: &Path) -> Result<Child> {
    let log = fs::File::create(cache.log("build-store"))?;
    let mut command = Command::new("unshare");
    command.args(["--mount", "--"]).arg(cache.debian("usr/bin/containerd"));
    command.arg("--config").arg(dir.join("containerd.toml"));
    command.env("PATH", cache.search_path()?).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    command.spawn().context("cannot start containerd")
}

fn import(cache: &Cache, dir: &Path, containerd: &mut Child) -> Result<()> {
    let (socket, log) = (dir.join("containerd.sock"), cache.log("build-store"));
    wait::until(Timeout::new("containerd", 30, log.clone()), || match containerd.try_wait()? {
        Some(status) => bail!("containerd ended ({status}): read {}", log.display()),
        None => Ok(UnixStream::connect(&socket).ok().map(drop)),
    })?;
    let mut command = Command::new(cache.debian("usr/bin/ctr"));
    command.arg("--address").arg(&socket).args(["-n", "k8s.io", "images", "import"]);
    subprocess::run_logged(command.arg(cache.path("image/cluster.tar")), &log)
}
