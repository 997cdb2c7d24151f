//! Builds container images without a registry: layers are tar files, and an archive is read by `ctr images import`.

use std::{
    fs::{self, File},
    io::{self, BufWriter, Cursor},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

const PATH_VARIABLE: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A layer: a tar file and its digest.
#[derive(Clone, Debug)]
pub struct Layer {
    path: PathBuf,
    digest: String,
}

pub struct Image {
    pub tags: Vec<String>,
    /// `Entrypoint`, `Cmd` and `User` of the image's configuration.
    pub settings: Value,
    pub layers: Vec<Layer>,
}

/// Writes one layer.
pub struct LayerBuilder {
    path: PathBuf,
    tar: Builder<BufWriter<File>>,
}

impl LayerBuilder {
    pub fn create(path: &Path) -> Result<LayerBuilder> {
        let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
        let mut tar = Builder::new(BufWriter::new(file));
        tar.follow_symlinks(false);
        Ok(LayerBuilder { path: path.to_owned(), tar })
    }

    pub fn tree(&mut self, root: &Path) -> Result<()> {
        self.tar.append_dir_all(".", root).with_context(|| format!("cannot pack {}", root.display()))
    }

    pub fn directory(&mut self, path: &str, mode: u32) -> Result<()> {
        Ok(self.tar.append_data(&mut header(EntryType::Directory, mode, 0), path, io::empty())?)
    }

    pub fn program(&mut self, source: &Path, path: &str) -> Result<()> {
        let file = File::open(source).with_context(|| format!("{}: run `kit build`", source.display()))?;
        let size = file.metadata()?.len();
        Ok(self.tar.append_data(&mut header(EntryType::Regular, 0o755, size), path, file)?)
    }

    pub fn text(&mut self, content: &str, path: &str) -> Result<()> {
        let mut header = header(EntryType::Regular, 0o644, content.len() as u64);
        Ok(self.tar.append_data(&mut header, path, content.as_bytes())?)
    }

    pub fn link(&mut self, path: &str, target: &str) -> Result<()> {
        Ok(self.tar.append_link(&mut header(EntryType::Symlink, 0o777, 0), path, target)?)
    }

    pub fn finish(self) -> Result<Layer> {
        self.tar.into_inner()?.into_inner().map_err(|error| error.into_error())?;
        Layer::open(&self.path)
    }
}

impl Layer {
    pub fn open(path: &Path) -> Result<Layer> {
        let mut digest = Sha256::new();
        io::copy(&mut File::open(path).with_context(|| format!("cannot read {}", path.display()))?, &mut digest)?;
        Ok(Layer { path: path.to_owned(), digest: hex(&digest.finalize()) })
    }
}

fn header(kind: EntryType, mode: u32, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Writes one archive with several images. Shared layers are written once.
pub fn write_archive(images: &[Image], path: &Path) -> Result<()> {
    let unfinished = path.with_extension("unfinished");
    let mut tar = Builder::new(BufWriter::new(File::create(&unfinished)?));
    let mut manifest = Vec::new();
    let mut written = std::collections::BTreeSet::new();
    for image in images {
        let configuration = configuration(image);
        let name = format!("{}.json", hex(&Sha256::digest(&configuration)));
        append(&mut tar, &name, &configuration)?;
        for layer in image.layers.iter().filter(|layer| written.insert(layer.digest.clone())) {
            tar.append_path_with_name(&layer.path, layer_name(layer))?;
        }
        let layers: Vec<String> = image.layers.iter().map(layer_name).collect();
        manifest.push(json!({"Config": name, "RepoTags": image.tags, "Layers": layers}));
    }
    append(&mut tar, "manifest.json", &serde_json::to_vec(&manifest)?)?;
    tar.into_inner()?.into_inner().map_err(|error| error.into_error())?;
    fs::rename(&unfinished, path).with_context(|| format!("cannot write {}", path.display()))
}

fn layer_name(layer: &Layer) -> String {
    format!("{}/layer.tar", layer.digest)
}

fn append(tar: &mut Builder<BufWriter<File>>, name: &str, content: &[u8]) -> Result<()> {
    let mut header = header(EntryType::Regular, 0o644, content.len() as u64);
    Ok(tar.append_data(&mut header, name, Cursor::new(content))?)
}

fn configuration(image: &Image) -> Vec<u8> {
    let mut settings = json!({"Env": [PATH_VARIABLE]});
    let own = image.settings.as_object().cloned().unwrap_or_default();
    settings.as_object_mut().expect("a JSON object").extend(own);
    let layers: Vec<String> = image.layers.iter().map(|layer| format!("sha256:{}", layer.digest)).collect();
    let architecture = if std::env::consts::ARCH == "aarch64" { "arm64" } else { "amd64" };
    let value = json!({
        "architecture": architecture,
        "os": "linux",
        "created": "2026-01-01T00:00:00Z",
        "config": settings,
        "rootfs": {"type": "layers", "diff_ids": layers},
    });
    value.to_string().into_bytes()
}
