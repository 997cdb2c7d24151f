#!/usr/bin/env bash
# Packs a Debian package: scripts/deb.sh [BINARY]
#
# BINARY defaults to target/release/beeline. The package is for the machine that this runs on; BEELINE_DEB_VERSION is its
# version, by default the workspace's; BEELINE_DEB_COMPRESSION is dpkg-deb's -Z. What is packed is listed in one place, below; man pages and completions come from
# the binary itself.
set -euo pipefail
cd "$(dirname "$0")/.."

binary=${1:-target/release/beeline}
die() {
    echo "deb: $1" >&2
    echo "    next: $2" >&2
    exit 1
}
[[ -x $binary ]] || die "there is no $binary" "make release, or name another one"
for tool in dpkg-deb dpkg-shlibdeps strip gzip; do
    command -v "$tool" >/dev/null || die "there is no $tool" "apt-get install dpkg-dev binutils gzip"
done

version=${BEELINE_DEB_VERSION:-$(sed -n 's/^version *= *"\(.*\)"/\1/p' Cargo.toml | head -n 1)}
arch=$(dpkg --print-architecture)
out=target/deb
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
chmod 755 "$tree"
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}

put() { install -D -m "$1" "$2" "$tree/$3"; }
packed() { install -d "$tree/$(dirname "$1")" && gzip -9n >"$tree/$1"; }

# --- files -----------------------------------------------------------------------------------------------------

put 755 "$binary" usr/bin/beeline
strip --strip-unneeded --remove-section=.comment "$tree/usr/bin/beeline"
put 644 deploy/systemd/beeline.service usr/lib/systemd/system/beeline.service
put 644 deploy/debian/default etc/default/beeline
# As they lie in the tree, so that one finds the other: what a host outside or at the edge needs, and what that names.
for file in docs/outside/*.md docs/options.md docs/operations.md examples/outside.yaml examples/beeline.yaml \
    deploy/outside/role.yaml deploy/edge/cloudcore.yaml; do
    put 644 "$file" "usr/share/doc/beeline/$file"
done

completion() {
    install -d "$tree/$(dirname "$2")"
    "$binary" completions "$1" >"$tree/$2"
    chmod 644 "$tree/$2"
}
completion bash usr/share/bash-completion/completions/beeline
completion zsh usr/share/zsh/vendor-completions/_beeline
completion fish usr/share/fish/vendor_completions.d/beeline.fish

pages=$tree/usr/share/man/man1
"$binary" man "$pages"
gzip -9n "$pages"/*.1
chmod 644 "$pages"/*.gz

indented() { sed 's/^$/./; s/^/ /' "$1"; }
awk -v bsd="$(indented LICENSES/BSD-2-Clause.txt)" '{ if ($0 == "@BSD@") print bsd; else print }' deploy/debian/copyright \
    >"$tree/copyright"
put 644 "$tree/copyright" usr/share/doc/beeline/copyright
rm "$tree/copyright"
put 644 CHANGELOG.md usr/share/doc/beeline/CHANGELOG.md
# A native package: its changelog is one of Debian's form.
printf 'beeline (%s) unstable; urgency=medium\n\n  * What changed is in CHANGELOG.md, beside this file.\n\n -- %s  %s\n' \
    "$version" "$(sed -n 's/^Maintainer: //p' deploy/debian/control.in)" "$(date -u -R -d "@$SOURCE_DATE_EPOCH")" |
    packed usr/share/doc/beeline/changelog.gz
chmod 644 "$tree/usr/share/doc/beeline/changelog.gz"

# --- control ---------------------------------------------------------------------------------------------------

# dpkg-shlibdeps wants to stand in a source package.
depends() {
    local source
    source=$(mktemp -d)
    mkdir "$source/debian"
    printf 'Source: beeline\n\nPackage: beeline\nArchitecture: any\n' >"$source/debian/control"
    (cd "$source" && dpkg-shlibdeps -O "$tree/usr/bin/beeline" 2>/dev/null) | sed -n 's/^shlibs:Depends=//p'
    rm -rf "$source"
}
install -d "$tree/DEBIAN"
needs=$(depends)
[[ $needs ]] || die "the libraries that $binary needs are of no package" "build it on Debian"
size=$(du -sk --exclude=DEBIAN "$tree" | cut -f1)
sed "s|@VERSION@|$version|; s|@ARCH@|$arch|; s|@SIZE@|$size|; s|@DEPENDS@|$needs|" deploy/debian/control.in >"$tree/DEBIAN/control"
(cd "$tree" && find etc -type f | sort | sed 's|^|/|') >"$tree/DEBIAN/conffiles"
install -m 755 deploy/debian/{postinst,prerm,postrm} "$tree/DEBIAN/"
(cd "$tree" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$tree/DEBIAN/md5sums"
chmod 644 "$tree"/DEBIAN/{control,conffiles,md5sums}
find "$tree" -type d -exec chmod 755 {} +

mkdir -p "$out"
package=$out/beeline_${version}_$arch.deb
dpkg-deb --root-owner-group "-Z${BEELINE_DEB_COMPRESSION:-xz}" --build "$tree" "$package" >/dev/null
echo "$package"
