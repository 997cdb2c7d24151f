#!/usr/bin/env bash
# Cross-compiles the release binary for arm64 on Debian 12 (amd64): scripts/cross-arm64.sh [--check | --kernel-check]
#
#   --check          type-check and build the C parts, do not link
#   --kernel-check   build kernel-check too, the test program that scripts/kernels.sh runs in a guest
#
# The compiler is Debian's package gcc-aarch64-linux-gnu. libelf and zlib, which libbpf links to, come from Debian's
# arm64 packages, unpacked into a cache and not installed, so that dpkg needs no foreign architecture. The eBPF programs
# need no cross-compiler: BPF depends only on the byte order, and both architectures are little-endian. Those for arm64 have
# read barriers (crates/datapath/build.rs).
#
# Environment: BEELINE_CACHE (default ~/.cache/beeline), CARGO_TARGET_DIR.
set -euo pipefail
cd "$(dirname "$0")/.."

target=aarch64-unknown-linux-gnu
root=${BEELINE_CACHE:-$HOME/.cache/beeline}/arm64
say() { echo "cross-arm64: $*"; }
die() {
    echo "cross-arm64: $1" >&2
    echo "    next: $2" >&2
    exit 1
}

# apt with this machine's sources and keys, but with private lists and state for arm64.
foreign_apt() {
    apt-get -q -o Dir::State="$root/apt/state" -o Dir::State::status="$root/apt/status" -o Dir::Cache="$root/apt/cache" \
        -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User=root \
        -o Acquire::Languages=none -o Acquire::Retries=3 "$@"
}

libraries() {
    local packages=(libelf-dev libelf1 zlib1g-dev zlib1g)
    if [[ -e $root/complete ]]; then
        say "libelf and zlib for arm64 are cached in $root"
        return
    fi
    say "unpacking ${packages[*]} for arm64 in $root"
    rm -rf "$root"
    mkdir -p "$root"/{apt/state/lists/partial,apt/cache/archives/partial,deb,sysroot}
    touch "$root/apt/status"
    foreign_apt update >"$root/log" 2>&1 && (cd "$root/deb" && foreign_apt download "${packages[@]}") >>"$root/log" 2>&1 ||
        die "cannot download Debian's arm64 packages: $(tail -n 1 "$root/log")" "check that apt's sources offer arm64; see $root/log"
    local package
    for package in "$root"/deb/*.deb; do
        dpkg-deb -x "$package" "$root/sysroot"
    done
    rm -rf "$root/apt" "$root/deb"
    touch "$root/complete"
}

tools() {
    scripts/setup.sh build cross
    if ! rustc --print target-libdir --target "$target" 2>/dev/null | xargs -I{} test -d {}; then
        command -v rustup >/dev/null || die "Rust's standard library for $target is missing" "install it for this toolchain"
        say "adding $target to the Rust toolchain"
        rustup -q target add "$target" || die "cannot add Rust's standard library for $target" "rustup target add $target"
    fi
}

# pkg-config must use the target's files, not the host's.
environment() {
    local lib=$root/sysroot/usr/lib/aarch64-linux-gnu
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS="-L native=$lib -C link-arg=-Wl,-rpath-link,$lib"
    export CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc AR_aarch64_unknown_linux_gnu=aarch64-linux-gnu-ar
    export CFLAGS_aarch64_unknown_linux_gnu="-I$root/sysroot/usr/include"
    export PKG_CONFIG_ALLOW_CROSS=1 PKG_CONFIG_SYSROOT_DIR=$root/sysroot PKG_CONFIG_LIBDIR=$lib/pkgconfig
}

# Fails unless the binary is for arm64.
check_binary() {
    local binary=$1 kind needed
    kind=$(aarch64-linux-gnu-readelf -h "$binary" | sed -n 's/^ *Machine: *//p')
    [[ $kind == AArch64 ]] || die "$binary is for $kind, expected AArch64" "check the linker with cargo build -v"
    needed=$(aarch64-linux-gnu-readelf -d "$binary" | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p' | tr '\n' ' ')
    say "$binary: $kind, $(stat -c %s "$binary") bytes, needs $needed"
}

build() {
    cargo build --locked --release --target "$target" "$@"
}

tools
libraries
environment
output=${CARGO_TARGET_DIR:-target}/$target/release
case ${1:-} in
    --check) cargo check --locked --release --target "$target" -p beeline ;;
    "" | --kernel-check)
        build -p beeline
        check_binary "$output/beeline"
        # A second command, so that the features of the test's dependencies do not change the release binary.
        [[ ${1:-} ]] || exit 0
        build -p beeline-harness --bin kernel-check
        check_binary "$output/kernel-check"
        ;;
    *) die "unknown option $1" "scripts/cross-arm64.sh [--check | --kernel-check]" ;;
esac
