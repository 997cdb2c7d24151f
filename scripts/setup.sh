#!/usr/bin/env bash
# Installs and mounts what a profile needs, prints what it changes, and changes nothing on the second run.
#
#   scripts/setup.sh PROFILE...
#
#   build     compilers for Rust and eBPF
#   run       root, a kernel with BPF and BTF, bpffs and cgroup2 (for the demo)
#   test      run, and the programs that the tests use
#   check     formatters, cargo-deny and the parser of AppArmor profiles
#   kernels   qemu for amd64 and arm64, the tools that build a small guest, and a C compiler for arm64
#   fuzz      cargo-fuzz
#   cluster   run, and the programs that the kit's Kubernetes nodes use (the kit builds the rest into its cache)
#   cross     a C compiler for arm64
#   image     buildah and mmdebstrap, to build the container image; minisign, to sign it
#   deb       tools that build and check the Debian package
#   outside   cluster, and the programs that hosts outside the cluster use
#   guest     qemu, and the tools that build a Debian guest
#
# Made for Debian 12 with root, git, make and a Rust toolchain. On another system it prints the names of Debian's packages
# and continues. Cargo tools are installed in ${BEELINE_CACHE:-~/.cache/beeline}, outside the tree and outside ~/.cargo.
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
test_packages=(bind9-dnsutils bpftool conntrack curl iptables minisign nftables procps prometheus python3 python3-seccomp unbound)
check_packages=(apparmor clang-format-19)
kernels_packages=(binutils busybox-static cpio debian-archive-keyring gzip iproute2 qemu-system-arm qemu-system-x86 xz-utils)
fuzz_packages=(g++)
cluster_packages=(conntrack curl ethtool gcc iptables libc6-dev libseccomp2 nftables openssl procps python3-pip socat)
image_packages=(buildah minisign mmdebstrap python3)
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
        say "$profile: dpkg is missing; install the equivalents of Debian's packages $*"
        return
    fi
    mapfile -t missing < <(missing_packages "$@")
    if ((${#missing[@]} == 0)); then
        say "$profile: packages are installed ($*)"
        return
    fi
    [[ $EUID == 0 ]] || die "packages ${missing[*]}; installing them needs root" "sudo apt-get install ${missing[*]}"
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

# Some packages start a daemon (unbound on port 53, bird on port 179, prometheus on port 9090). The tests start their own or
# use only a tool of the package, so a temporary policy-rc.d prevents that, and the services are disabled. An existing
# policy-rc.d is not changed.
without_services() {
    local policy=/usr/sbin/policy-rc.d had package
    had=$(missing_packages unbound bird2 prometheus)
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

# Checked first, because this script does not install Rust.
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
        say "check: cargo $1 is installed"
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

# CapEff is a bit mask: 12 net_admin, 21 sys_admin, 39 bpf. Root in a container often lacks them.
capability() {
    local mask
    mask=$(sed -n 's/^CapEff:\t*//p' /proc/self/status)
    (((0x$mask >> $1) & 1))
}

rights() {
    local lacking=()
    [[ $EUID == 0 ]] || die "root, which is needed to load BPF programs and to mount" "run the same command with sudo"
    capability 12 || lacking+=(CAP_NET_ADMIN)
    capability 21 || lacking+=(CAP_SYS_ADMIN)
    capability 39 || lacking+=(CAP_BPF)
    ((${#lacking[@]} == 0)) || die "${lacking[*]}, which root in this container does not have" \
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

# Hybrid hosts mount cgroup2 at /sys/fs/cgroup/unified. If it is not mounted at all, it is mounted there, below the tmpfs of
# the v1 controllers, or at /sys/fs/cgroup if nothing is mounted there. An existing hierarchy is never covered.
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
        mkdir -p "$at" || die "$at, which cannot be created" "mount cgroup2 by hand: mount -t cgroup2 cgroup2 DIR"
    fi
    say "run: mounting cgroup2 at $at"
    mount -t cgroup2 cgroup2 "$at" || die "cgroup2" "mount -t cgroup2 cgroup2 $at"
}

# A real bpf() call, because a seccomp filter or kernel lockdown may still refuse it.
bpf_allowed() {
    local output
    output=$(bpftool map show 2>&1 >/dev/null) || die "permission for bpf(): $output" \
        "look for a seccomp filter or kernel lockdown (cat /sys/kernel/security/lockdown)"
    say "test: bpf() is permitted"
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
        kernels) packages kernels "${kernels_packages[@]}" "${cross_packages[@]}" ;;
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
