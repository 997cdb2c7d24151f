#!/usr/bin/env bash
# Beeline's image from deploy/Dockerfile, without a daemon and without a registry.
#
#   scripts/image.sh [BINARY]          default: target/release/beeline
#
# buildah builds the last stage of the Dockerfile as it stands. What the first stage would compile is given to it (BINARY),
# and Debian's base image is made from Debian's archive: nothing is pulled. The base is kept in the cache. The image is
# tried, and written to target/image/beeline.tar for `ctr images import`, `podman load` and `docker load`.
set -euo pipefail
cd "$(dirname "$0")/.."

binary=${1:-target/release/beeline}
cache=${BEELINE_CACHE:-$HOME/.cache/beeline}/image
release=$(sed -n 's/^ARG DEBIAN=//p' deploy/Dockerfile)
base=docker.io/library/debian:$release-slim
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
name=ghcr.io/beeline-dev/beeline:$version

say() { echo "image: $*"; }
die() {
    printf 'image: %s\n    next: %s\n' "$1" "$2" >&2
    exit 1
}
store() { buildah --root "$cache/store" --runroot "$cache/run" --storage-driver vfs "$@"; }

[[ -x $binary ]] || die "$binary is missing" "make release, or scripts/image.sh BINARY"
[[ $EUID == 0 ]] || die "making a Debian root file system needs root" "run the same command with sudo"
for tool in buildah mmdebstrap; do
    command -v "$tool" >/dev/null || die "$tool is missing" "scripts/setup.sh image"
done
mkdir -p "$cache" target/image

if ! store inspect --type image "$base" >/dev/null 2>&1; then
    say "making $base from Debian's archive (half a minute, once)"
    mmdebstrap --quiet --variant=apt --mode=root "$release" "$cache/base.tar"
    container=$(store from scratch)
    store add --quiet "$container" "$cache/base.tar" / >/dev/null
    store config --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin --cmd bash "$container"
    store commit --quiet --rm "$container" "$base" >/dev/null
    rm "$cache/base.tar"
fi

# The stage `build` is this folder.
install -D -m 755 "$binary" target/image/build/out/beeline
say "building $name from deploy/Dockerfile with $binary"
store build --isolation chroot --network host --pull-never --quiet --build-context build=target/image/build \
    --file deploy/Dockerfile --tag "$name" . >/dev/null

container=$(store from --pull-never "$name")
trap 'store rm "$container" >/dev/null' EXIT
said=$(store run --isolation chroot "$container" -- beeline --version) || die "the program does not run in its image" \
    "was it built on a newer system than Debian $release?"
[[ $said == "beeline $version" ]] || die "the image says '$said', and this is $version" "make release, and again"
store run --isolation chroot "$container" -- test -x /usr/share/beeline/detach-wait -a -x /usr/bin/curl ||
    die "the uninstall hook's programs are not in the image" "look at deploy/Dockerfile"
rm -f target/image/beeline.tar
store push --quiet "$name" "docker-archive:target/image/beeline.tar:$name"
say "$name: $(du -h target/image/beeline.tar | cut -f1) at target/image/beeline.tar"
