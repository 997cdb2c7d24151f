#!/usr/bin/env bash
# Installs, upgrades, removes and purges the Debian package in a private root: scripts/deb-check.sh [BINARY]
#
# The root contains busybox and the libraries that the binary needs; this machine's dpkg works in it. After the purge no
# additional file may exist. systemd-analyze checks the unit.
set -euo pipefail
cd "$(dirname "$0")/.."

binary=${1:-target/debug/beeline}
die() {
    echo "deb-check: $1" >&2
    [[ $# -lt 2 ]] || echo "    next: $2" >&2
    exit 1
}
[[ $EUID == 0 ]] || die "this script needs root, because dpkg changes its root directory" "sudo scripts/deb-check.sh"
busybox=$(command -v busybox) || die "busybox is missing" "apt-get install busybox-static"
ldd "$busybox" >/dev/null 2>&1 && die "$busybox is not static" "apt-get install busybox-static"

dir=$(mktemp -d)
root=$dir/root
trap 'rm -rf "$dir"' EXIT

# --- a root ----------------------------------------------------------------------------------------------------

mkdir -p "$root"/{bin,dev,etc,usr/bin,var/lib/dpkg/{info,updates,triggers},run,tmp}
cp "$busybox" "$root/bin/busybox"
for applet in sh rm rmdir echo cat; do ln -s busybox "$root/bin/$applet"; done
mknod -m 666 "$root/dev/null" c 1 3
touch "$root/var/lib/dpkg/status"
ldd "$binary" | grep -o '/[^ ]*' | while read -r library; do install -D "$library" "$root$library"; done

# All files except dpkg's own database.
inventory() { (cd "$root" && find . -path ./var/lib/dpkg -prune -o -print | sort); }
# The package's scripts run inside the root.
work() { PATH=/bin:/usr/bin:/usr/sbin:/sbin dpkg --root="$root" --force-depends --no-triggers "$@" >"$dir/log" 2>&1 ||
    { cat "$dir/log" >&2; die "dpkg $* failed"; }; }
has() { [[ -e $root/$1 ]] || die "/$1 is missing after $2"; }
has_not() { [[ ! -e $root/$1 ]] || die "/$1 still exists after $2"; }

# --- the package -----------------------------------------------------------------------------------------------

# The packages are deleted at the end, so compressing them would waste time.
export BEELINE_DEB_COMPRESSION=none
first=$(BEELINE_DEB_VERSION=0.0.1 scripts/deb.sh "$binary")
second=$(BEELINE_DEB_VERSION=0.0.2 scripts/deb.sh "$binary")
trap 'rm -rf "$dir" "$first" "$second"' EXIT
echo "deb-check: $(dpkg-deb -f "$first" Package Version Architecture Depends | tr '\n' ' ')"
listing=$(dpkg-deb -c "$first")
for path in usr/bin/beeline usr/lib/systemd/system/beeline.service usr/share/man/man1/beeline.1.gz \
    usr/share/man/man1/beeline-join.1.gz usr/share/bash-completion/completions/beeline \
    usr/share/zsh/vendor-completions/_beeline usr/share/doc/beeline/copyright usr/share/doc/beeline/examples/outside.yaml \
    usr/share/doc/beeline/docs/outside/{README,dns,join,kubeedge,kubevirt,several-clusters}.md \
    usr/share/doc/beeline/deploy/{edge/cloudcore,outside/role}.yaml; do
    grep -q " \./$path\$" <<<"$listing" || die "/$path is missing in the package"
done
! awk '{ print $2 }' <<<"$listing" | grep -v '^root/root$' || die "a file in the package is not owned by root"

before=$(inventory)
work -i "$first"
has usr/bin/beeline "the installation"
chroot "$root" /usr/bin/beeline --version >/dev/null || die "beeline --version failed in the private root"
# The files that `beeline join` would have created.
mkdir -p "$root"/{etc/beeline,var/lib/beeline/{clusters/shop,snapshot},etc/systemd/{system/multi-user.target.wants,resolved.conf.d}}
touch "$root"/var/lib/beeline/{clusters/shop/kubeconfig,snapshot/shop.snapshot}
chroot "$root" /usr/bin/beeline dns route --address 127.0.0.55:53 --domains cluster.local >/dev/null
echo 'node-name: vm-1' >"$root/etc/beeline/config.yaml"
ln -s /usr/lib/systemd/system/beeline.service "$root/etc/systemd/system/multi-user.target.wants/beeline.service"
work -i "$second"
has var/lib/beeline/clusters/shop/kubeconfig "the upgrade"
has etc/systemd/resolved.conf.d/beeline.conf "the upgrade"
has etc/beeline/config.yaml "the upgrade"
work -r beeline
has_not usr/bin/beeline "the removal"
has etc/beeline/config.yaml "the removal"
has var/lib/beeline/clusters/shop/kubeconfig "the removal"
has_not etc/systemd/resolved.conf.d/beeline.conf "the removal"
work -P beeline
rmdir "$root"/etc/systemd/{system/multi-user.target.wants,system,resolved.conf.d,} # created above
left=$(comm -13 <(echo "$before") <(inventory))
[[ -z $left ]] || die "files left after the purge: $left"
echo "deb-check: installed, upgraded, removed and purged; no file is left"

# --- the unit and the pages ------------------------------------------------------------------------------------

if command -v systemd-analyze >/dev/null; then
    sed "s|/usr/bin/beeline|$(realpath "$binary")|" deploy/systemd/beeline.service >"$dir/beeline.service"
    # --man=no: the man pages are in the package, not on this machine.
    systemd-analyze verify --man=no "$dir/beeline.service" 2>"$dir/log" || { cat "$dir/log" >&2; die "systemd-analyze rejects the unit, see above"; }
    ! grep -q beeline.service "$dir/log" || { cat "$dir/log" >&2; die "systemd-analyze rejects the unit, see above"; }
    echo "deb-check: systemd-analyze accepts the unit: $(systemd-analyze security --offline=yes "$dir/beeline.service" 2>/dev/null | tail -n 1)"
else
    die "systemd-analyze is missing" "apt-get install systemd"
fi
if command -v lintian >/dev/null; then
    suppressed=uses-no-compression-for-control-tarball,uses-no-compression-for-data-tarball # these packages are not compressed, see above
    lintian --fail-on error --suppress-tags "$suppressed" "$second" || die "lintian reports errors, see above"
    echo "deb-check: lintian reports no error"
fi
