//! Compiles the bench's BPF programs into skeletons. The variable `CLANG` selects another compiler than clang-19.

use std::{env, path::PathBuf};

use anyhow::Context;
use libbpf_cargo::SkeletonBuilder;

fn main() -> anyhow::Result<()> {
    println!("cargo::rerun-if-changed=bpf");
    println!("cargo::rerun-if-env-changed=CLANG");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang-19".into());
    for object in ["record", "tables"] {
        SkeletonBuilder::new()
            .source(format!("bpf/{object}.bpf.c"))
            .clang(&clang)
            // v3 has atomic compare-and-swap, which kernels support since 5.12.
            .clang_args(["-mcpu=v3", "-fno-strict-aliasing", "-Wall", "-Werror"])
            .build_and_generate(out.join(format!("{object}.skel.rs")))
            .with_context(|| format!("bpf/{object}.bpf.c: does {clang} exist?"))?;
    }
    Ok(())
}
