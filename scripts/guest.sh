#!/usr/bin/env bash
# Builds a Debian guest for qemu (disk, kernel, initramfs) from Debian's packages, once, and caches it.
#
#   scripts/guest.sh [--refresh]      --refresh builds it again with the current packages
#
# Prints the cache directory. The kit boots copies of the disk (testing/kit/src/guest.rs), without KVM; commands go through QEMU's
# guest agent, so that no test depends on the network under test. The guest's network configuration is a file on a second
# disk, labelled "seed" and mounted at /seed.
#
# Environment: BEELINE_CACHE (default ~/.cache/beeline).
set -euo pipefail
cd "$(dirname "$0")/.."

release=bookworm
packages=(bind9-dnsutils ca-certificates curl dbus initramfs-tools iproute2 kmod linux-image-cloud-amd64 lz4 netbase procps
    qemu-guest-agent systemd-resolved systemd-sysv udev)
cache=${BEELINE_CACHE:-$HOME/.cache/beeline}/guest
self=$PWD/scripts/guest.sh

say() { echo "guest: $*" >&2; }
die() {
    printf 'guest: %s\n    next: %s\n' "$1" "$2" >&2
    exit 1
}

# --- the root file system ----------------------------------------------------------------------------------------

# Without a mirror argument mmdebstrap uses this machine's apt sources.
install_packages() {
    local root=$1 included
    included=$(IFS=,; echo "${packages[*]}")
    mmdebstrap --quiet --variant=minbase --mode=root --include="$included" --essential-hook="$self --drivers \"\$1\"" \
        "$release" "$root" || die "mmdebstrap failed, see above" "is $release in this machine's apt sources?"
}

# Runs before the kernel is installed. The initramfs contains only the drivers of the disk, because a guest without KVM
# loads slowly.
drivers() {
    mkdir -p "$1/etc/initramfs-tools/conf.d"
    printf 'MODULES=list\nCOMPRESS=lz4\n' >"$1/etc/initramfs-tools/conf.d/guest.conf"
    printf 'virtio_pci\nvirtio_blk\n' >"$1/etc/initramfs-tools/modules"
}

# Changes to the packages' defaults: a fixed machine id, so that no boot is a first boot; no timers; systemd-networkd
# configured from the seed disk; DNS by systemd-resolved.
configure() {
    local root=$1 unit
    echo guest >"$root/etc/hostname"
    printf '127.0.0.1 localhost guest\n::1 localhost\n' >"$root/etc/hosts"
    echo 8e2a1c50b7d14f4c9a63d5e80f1b7246 >"$root/etc/machine-id"
    printf '/dev/vda / ext4 noatime 0 1\nLABEL=seed /seed ext4 ro,nofail,x-systemd.device-timeout=900 0 0\n' >"$root/etc/fstab"
    # Without KVM on a busy machine, services may take longer than the default of 90 s to start.
    mkdir -p "$root/etc/systemd/system.conf.d"
    printf '[Manager]\nDefaultTimeoutStartSec=900\nDefaultTimeoutStopSec=120\n' >"$root/etc/systemd/system.conf.d/slow.conf"
    mkdir -p "$root/seed" "$root/etc/systemd/network" "$root/etc/systemd/system/systemd-networkd.service.d"
    ln -sfn /seed/guest.network "$root/etc/systemd/network/10-seed.network"
    printf '[Unit]\nRequiresMountsFor=/seed\n' >"$root/etc/systemd/system/systemd-networkd.service.d/seed.conf"
    ln -sfn ../run/systemd/resolve/stub-resolv.conf "$root/etc/resolv.conf"
    for unit in apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap.service fstrim.timer \
        getty@tty1.service serial-getty@ttyS0.service systemd-networkd-wait-online.service; do
        ln -sfn /dev/null "$root/etc/systemd/system/$unit"
    done
    chroot "$root" systemctl --quiet enable systemd-networkd.service systemd-resolved.service
    rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/* "$root"/etc/apt/sources.list*
}

# --- the disk ----------------------------------------------------------------------------------------------------

# The disk is renamed into place last, so that an existing disk is always complete.
make_disk() {
    local root=$1
    cp "$root"/boot/vmlinuz-* "$cache/vmlinuz"
    cp "$root"/boot/initrd.img-* "$cache/initrd.img"
    rm -f "$cache/disk.part"
    mke2fs -q -t ext4 -L root -d "$root" "$cache/disk.part" 2G
    mv "$cache/disk.part" "$cache/disk.img"
}

build() {
    local root=$cache/root
    rm -rf "$root" "$cache/disk.img"
    mkdir -p "$cache"
    trap 'rm -rf "$cache/root"' EXIT
    say "building a Debian $release disk from packages (a minute, once)"
    install_packages "$root"
    configure "$root"
    make_disk "$root"
    stamp >"$cache/stamp"
}

# The disk depends only on this script.
stamp() { sha256sum "$self" | cut -d' ' -f1; }

case ${1:-} in
    --drivers) drivers "$2" && exit ;;
    --refresh) rm -f "$cache/stamp" ;;
    '') ;;
    *) die "unknown option $1" "scripts/guest.sh [--refresh]" ;;
esac
[[ $EUID == 0 ]] || die "building a root file system needs root" "run the same command with sudo"
[[ $(uname -m) == x86_64 ]] || die "the guest is x86_64, but this machine is $(uname -m)" "run it on an x86_64 machine"
for tool in mmdebstrap mke2fs; do
    command -v "$tool" >/dev/null || die "$tool is missing" "scripts/setup.sh guest"
done
if [[ ! -e $cache/disk.img || $(cat "$cache/stamp" 2>/dev/null) != "$(stamp)" ]]; then
    build
    say "$(du -h "$cache/disk.img" | cut -f1) at $cache/disk.img"
fi
echo "$cache"
