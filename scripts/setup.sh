#!/usr/bin/env bash
# Makes this machine ready for a profile, says what it does, and changes nothing that is already right.
#
#   scripts/setup.sh PROFILE...
#
#   build     a compiler for each half
#   run       a kernel that can run us: root, BPF, BTF, bpffs, cgroup2 (the demo)
#   test      run, and the programs that the tests dial with
#   check     formatters and cargo-deny
#   kernels   qemu and what a small guest is made of
#   fuzz      cargo-fuzz
#   cluster   run, and what nodes of a Kubernetes on this machine call (the kit fetches the rest into its cache)
#   cross     a C compiler for arm64
#   image     what builds a container image without a daemon
#   deb       what a Debian package is packed and tried with
#   outside   cluster, and what hosts outside of it call
#   guest     qemu, and what a whole Debian guest is made of
#
# Made for Debian 12 with root, git, make and a Rust toolchain. On another system it names the packages that it would
# have installed and goes on if the programs are there. Cargo tools go to ${BEELINE_CACHE:-~/.cache/beeline}, outside
# the tree and outside ~/.cargo.
set -euo pipefail
cd "$(dirname "$0")/.."

cache=${BEELINE_CACHE:-$HOME/.cache/beeline}
minimum_kernel=6.1

say() { echo "setup: $*"; }
die() {
    printf 'setup: missing: %s\n' "$1" >&2
    shift
    printf '       next:    %s\n' "$@" >&2
    exit 1
}

# --- packages --------------------------------------------------------------------------------------------------

build_packages=(clang-19 gcc libc6-dev make pkg-config libelf-dev zlib1g-dev)
run_packages=(iproute2 util-linux)
test_packages=(bind9-dnsutils bpftool curl iptables nftables procps python3 unbound)
check_packages=(clang-format-19)
kernels_packages=(binutils busybox-static cpio debian-archive-keyring gzip iproute2 qemu-system-x86 xz-utils)
fuzz_packages=(g++)
cluster_packages=(conntrack curl ethtool gcc iptables libc6-dev libseccomp2 nftables openssl procps python3-pip socat)
image_packages=(buildah mmdebstrap)
outside_packages=(bird2 hostname)
guest_packages=(e2fsprogs mmdebstrap passt qemu-system-x86)
cross_packages=(gcc-aarch64-linux-gnu libc6-dev-arm64-cross dpkg)
deb_packages=(binutils busybox-static dpkg-dev gzip systemd xz-utils)

missing_packages() {
    local package
    for package in "$@"; do
        [[ $(dpkg-query -W -f '${db:Status-Abbrev}' "$package" 2>/dev/null) == ii* ]] || echo "$package"
    done
}

packages() {
    local profile=$1 missing
    shift
    if ! command -v dpkg-query >/dev/null; then
        say "$profile: no dpkg here; install by hand what answers to Debian's $*"
        return
    fi
    mapfile -t missing < <(missing_packages "$@")
    if ((${#missing[@]} == 0)); then
        say "$profile: packages are there ($*)"
        return
    fi
    [[ $EUID == 0 ]] || die "packages ${missing[*]}, and this is not root" "sudo apt-get install ${missing[*]}"
    say "$profile: installing ${missing[*]}"
    without_services apt_install "${missing[@]}"
}

apt_install() {
    local log
    log=$(mktemp)
    if ! { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install "$@"; } \
        >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        rm -f "$log"
        die "packages $*: apt-get failed, see above" "apt-get update && apt-get install $*"
    fi
    rm -f "$log"
}

# A package may bring a daemon (unbound listens on port 53, bird on port 179). The tests start their own, so nothing is to start here,
# now or at the next boot. Where the machine has a policy of its own, that one holds.
without_services() {
    local policy=/usr/sbin/policy-rc.d had package
    had=$(missing_packages unbound bird2)
    if [[ ! -e $policy ]]; then
        trap 'rm -f /usr/sbin/policy-rc.d' EXIT
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod 755 "$policy"
    fi
    "$@"
    if [[ $had && -d /run/systemd/system ]]; then
        for package in $had; do systemctl disable "${package/bird2/bird}.service" >/dev/null 2>&1 || true; done
    fi
    if [[ -n $(trap -p EXIT) ]]; then
        rm -f "$policy"
        trap - EXIT
    fi
}

# --- Rust ------------------------------------------------------------------------------------------------------

at_least() { [[ $(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1) == "$1" ]]; }

# First in its profiles: it is the one thing that we do not install.
rust() {
    local want have
    want=$(sed -n 's/^rust-version *= *"\(.*\)"/\1/p' Cargo.toml)
    if ! command -v cargo >/dev/null || ! command -v rustc >/dev/null; then
        [[ ! -x $HOME/.cargo/bin/cargo ]] || die "cargo on the PATH" "export PATH=\"\$HOME/.cargo/bin:\$PATH\""
        die "a Rust toolchain (at least $want)" \
            "install rustup as https://rustup.rs says, then: rustup toolchain install stable"
    fi
    have=$(rustc --version | cut -d' ' -f2)
    at_least "$want" "$have" || die "Rust $want (this is $have)" "rustup update stable"
    say "rust: $have"
}

component() {
    if cargo "$1" --version >/dev/null 2>&1; then
        say "check: cargo $1 is there"
    elif command -v rustup >/dev/null; then
        say "check: adding $2 to the Rust toolchain"
        rustup -q component add "$2" || die "cargo $1" "rustup component add $2"
    else
        die "cargo $1" "install $2 for this Rust toolchain"
    fi
}

cargo_tool() {
    local profile=$1 tool=$2
    if [[ -x $cache/bin/$tool ]]; then
        say "$profile: $tool is in $cache/bin"
    elif command -v "$tool" >/dev/null; then
        say "$profile: $tool is $(command -v "$tool")"
    else
        say "$profile: building $tool into $cache/bin (a few minutes, once)"
        CARGO_TARGET_DIR=$cache/build cargo install --quiet --locked --root "$cache" "$tool" ||
            die "$tool" "cargo install --locked --root $cache $tool"
        rm -rf "$cache/build"
    fi
}

# --- the kernel ------------------------------------------------------------------------------------------------

# CapEff is a mask: 12 net_admin, 21 sys_admin, 39 bpf. A container's root often lacks them.
capability() {
    local mask
    mask=$(sed -n 's/^CapEff:\t*//p' /proc/self/status)
    (((0x$mask >> $1) & 1))
}

rights() {
    local lacking=()
    [[ $EUID == 0 ]] || die "root: loading BPF programs and mounting need it" "run the same command with sudo"
    capability 12 || lacking+=(CAP_NET_ADMIN)
    capability 21 || lacking+=(CAP_SYS_ADMIN)
    capability 39 || lacking+=(CAP_BPF)
    ((${#lacking[@]} == 0)) || die "${lacking[*]}: this root is a container's" \
        "run on the host or in a virtual machine, or start the container with --privileged"
}

kernel() {
    local have
    have=$(uname -r)
    at_least "$minimum_kernel" "$have" || die "Linux $minimum_kernel (this is $have)" "boot a newer kernel"
    [[ -e /proc/sys/kernel/unprivileged_bpf_disabled ]] ||
        die "the bpf() system call: kernel $have has no CONFIG_BPF_SYSCALL" \
            "boot a kernel built with it, such as Debian's"
    [[ -r /sys/kernel/btf/vmlinux ]] ||
        die "BTF at /sys/kernel/btf/vmlinux: kernel $have has no CONFIG_DEBUG_INFO_BTF" \
            "boot a kernel built with it, such as Debian's"
    say "run: kernel $have has BPF and BTF"
}

mounted() { awk -v type="$1" '$3 == type { print $2; exit }' /proc/mounts; }

bpffs() {
    if [[ $(stat -f -c %T /sys/fs/bpf 2>/dev/null) == bpf_fs ]]; then
        say "run: bpffs is at /sys/fs/bpf"
        return
    fi
    [[ -d /sys/fs/bpf ]] || die "/sys/fs/bpf: is sysfs mounted at /sys?" "mount -t sysfs sysfs /sys"
    say "run: mounting bpffs at /sys/fs/bpf"
    mount -t bpf bpf /sys/fs/bpf || die "bpffs" "mount -t bpf bpf /sys/fs/bpf"
}

# Hybrid hosts have it at /sys/fs/cgroup/unified. Only where there is none do we mount one, and never over a hierarchy:
# below the tmpfs of the v1 controllers, or, where nothing is mounted at all, in cgroup2's usual place.
cgroup2() {
    local at
    at=$(mounted cgroup2)
    if [[ $at ]]; then
        say "run: cgroup2 is at $at"
        return
    fi
    grep -qw cgroup2 /proc/filesystems || die "cgroup2 in this kernel (CONFIG_CGROUPS)" "boot a kernel built with it"
    at=/sys/fs/cgroup
    if mountpoint -q "$at"; then
        at=$at/unified
        mkdir -p "$at" || die "$at: cannot be made" "mount cgroup2 by hand: mount -t cgroup2 cgroup2 DIR"
    fi
    say "run: mounting cgroup2 at $at"
    mount -t cgroup2 cgroup2 "$at" || die "cgroup2" "mount -t cgroup2 cgroup2 $at"
}

# The proof: a real bpf() call, which a seccomp filter or lockdown may still refuse.
bpf_allowed() {
    local said
    said=$(bpftool map show 2>&1 >/dev/null) || die "permission for bpf(): $said" \
        "look for a seccomp filter or kernel lockdown (cat /sys/kernel/security/lockdown)"
    say "test: bpf() answers"
}

# --- profiles --------------------------------------------------------------------------------------------------

profile() {
    case $1 in
        build)
            rust
            packages build "${build_packages[@]}"
            ;;
        run)
            rights
            packages run "${run_packages[@]}"
            kernel
            bpffs
            cgroup2
            ;;
        test)
            profile run
            packages test "${test_packages[@]}"
            bpf_allowed
            ;;
        check)
            rust
            packages check "${check_packages[@]}"
            component fmt rustfmt
            component clippy clippy
            cargo_tool check cargo-deny
            ;;
        kernels) packages kernels "${kernels_packages[@]}" ;;
        fuzz)
            rust
            packages fuzz "${fuzz_packages[@]}"
            cargo_tool fuzz cargo-fuzz
            ;;
        cluster)
            profile run
            packages cluster "${cluster_packages[@]}"
            ;;
        cross) packages cross "${cross_packages[@]}" ;;
        image) packages image "${image_packages[@]}" ;;
        deb) packages deb "${deb_packages[@]}" ;;
        outside)
            profile cluster
            packages outside "${outside_packages[@]}"
            ;;
        guest)
            profile cluster
            packages guest "${guest_packages[@]}"
            ;;
        *) die "a profile named '$1'" "scripts/setup.sh build|run|test|check|kernels|fuzz|cluster|cross|image|deb|outside|guest" ;;
    esac
}

(($#)) || die "a profile" "scripts/setup.sh build|run|test|check|kernels|fuzz|cluster|cross|image|deb|outside|guest"
for name in "$@"; do
    profile "$name"
done
