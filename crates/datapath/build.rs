//! Compiles the BPF objects, which are embedded into the binary, and generates Rust types for abi.h from their BTF.

use libbpf_cargo::SkeletonBuilder;
use std::env;
use std::path::PathBuf;

const OBJECTS: [&str; 6] = ["layout", "resolver", "test_resolver", "sockets", "refusal", "packet"];

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let bpf =
        PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR")).join("../../bpf");
    println!("cargo:rerun-if-changed={}", bpf.display());
    println!("cargo:rerun-if-env-changed=BEELINE_CLANG");
    let clang = env::var("BEELINE_CLANG").unwrap_or_else(|_| "clang-19".to_owned());
    let mut args = vec!["-nostdinc", "-mcpu=v3", "-Wall", "-Werror"];
    if env::var_os("CARGO_FEATURE_OTHER_LAYOUT").is_some() {
        args.push("-DBEELINE_OTHER_LAYOUT");
    }
    // Processors that reorder loads need barriers, which cost time on every dial. x86 does not reorder loads.
    if env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch != "x86_64") {
        args.push("-DBEELINE_WEAKLY_ORDERED");
    }
    for name in OBJECTS {
        let result = SkeletonBuilder::new()
            .source(bpf.join(format!("{name}.bpf.c")))
            .obj(out.join(format!("{name}.bpf.o")))
            .clang(&clang)
            .clang_args(&args)
            .build_and_generate(out.join(format!("{name}.skel.rs")));
        if let Err(error) = result {
            panic!(
                "cannot compile {name}.bpf.c: {error:#}\nhint: `make setup` installs {clang}; BEELINE_CLANG selects another compiler"
            );
        }
    }
}
