#!/usr/bin/env bash
# Builds the container image from deploy/Dockerfile without a daemon and without pulling anything.
#
#   scripts/image.sh [BINARY]          default: target/node/beeline, which `make node-binary` builds
#
#   IMAGE=REPOSITORY:TAG    the name of the image; default: ghcr.io/beeline-dev/beeline:VERSION
#   PUSH=1                  push it to the registry in its name; log in with `buildah login REGISTRY` first
#   SIGN_KEY=FILE           sign all files of target/image with this key (scripts/sign.sh keys)
#
# Files in target/image: beeline.tar; sbom.json, the crates and Debian packages in the image (CycloneDX); with PUSH digest, the
# digest in the registry for the chart's image.digest; with SIGN_KEY SHA256SUMS and SHA256SUMS.minisig.
#
# buildah builds the last stage of the Dockerfile. BINARY replaces what the first stage would compile, and Debian's base
# image is built from Debian's archive and cached. The script runs the image once and writes target/image/beeline.tar for
# `ctr images import`, `podman load` and `docker load`.
set -euo pipefail
cd "$(dirname "$0")/.."

binary=${1:-target/node/beeline}
cache=${BEELINE_CACHE:-$HOME/.cache/beeline}/image
release=$(sed -n 's/^ARG DEBIAN=//p' deploy/Dockerfile)
base=docker.io/library/debian:$release-slim
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
name=${IMAGE:-ghcr.io/beeline-dev/beeline:$version}

say() { echo "image: $*"; }
die() {
    printf 'image: %s\n    next: %s\n' "$1" "$2" >&2
    exit 1
}
store() { buildah --root "$cache/store" --runroot "$cache/run" --storage-driver vfs "$@"; }

[[ ${name##*/} == *:* ]] || die "IMAGE=$name has no tag" "name it with a tag, such as $name:$version"
[[ -x $binary ]] || die "$binary is missing" "make node-binary, or scripts/image.sh BINARY"
[[ $EUID == 0 ]] || die "making a Debian root file system needs root" "run the same command with sudo"
for tool in buildah mmdebstrap; do
    command -v "$tool" >/dev/null || die "$tool is missing" "scripts/setup.sh image"
done
if [[ ${SIGN_KEY:-} ]]; then
    [[ -r $SIGN_KEY ]] || die "SIGN_KEY=$SIGN_KEY cannot be read" "scripts/sign.sh keys DIR"
    command -v minisign >/dev/null || die "minisign is missing" "scripts/setup.sh image"
fi
mkdir -p "$cache" target/image
rm -f target/image/{beeline.tar,sbom.json,digest,SHA256SUMS,SHA256SUMS.minisig}

if ! store inspect --type image "$base" >/dev/null 2>&1; then
    say "building $base from Debian's archive (half a minute, once)"
    mmdebstrap --quiet --variant=apt --mode=root "$release" "$cache/base.tar"
    container=$(store from scratch)
    store add --quiet "$container" "$cache/base.tar" / >/dev/null
    store config --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin --cmd bash "$container"
    store commit --quiet --rm "$container" "$base" >/dev/null
    rm "$cache/base.tar"
fi

# This folder replaces the stage `build`.
install -D -m 755 "$binary" target/image/build/out/beeline
say "building $name from deploy/Dockerfile with $binary"
store build --isolation chroot --network host --pull-never --quiet --build-context build=target/image/build \
    --file deploy/Dockerfile --tag "$name" . >/dev/null

container=$(store from --pull-never "$name")
trap 'store rm "$container" >/dev/null' EXIT
output=$(store run --isolation chroot "$container" -- beeline --version) || die "beeline --version failed in the image" \
    "was it built on a newer system than Debian $release?"
[[ $output == "beeline $version"* ]] || die "the binary in the image has version '$output', expected $version" "run make image again"
store run --isolation chroot "$container" -- test -x /usr/share/beeline/detach-wait -a -x /usr/bin/curl ||
    die "detach-wait or curl is missing in the image" "check the last stage of deploy/Dockerfile"
store run --isolation chroot "$container" -- dpkg-query -W -f '${Package} ${Version} ${Architecture}\n' >target/image/build/packages
scripts/sbom.py "$(rustc -vV | sed -n 's/^host: //p')" target/image/build/packages >target/image/sbom.json
say "$(grep -c '"bom-ref": "pkg:' target/image/sbom.json) components in target/image/sbom.json"
store push --quiet "$name" "docker-archive:target/image/beeline.tar:$name"
say "$name: $(du -h target/image/beeline.tar | cut -f1) at target/image/beeline.tar"
if [[ ${PUSH:-} ]]; then
    say "pushing $name"
    store push --quiet --digestfile target/image/digest "$name" "docker://$name" ||
        die "cannot push $name" "check the registry's name and buildah login ${name%%/*}"
    say "install it by its digest: --set image.repository=${name%:*} --set image.digest=$(<target/image/digest)"
fi
if [[ ${SIGN_KEY:-} ]]; then
    scripts/sign.sh sign "$SIGN_KEY" target/image
    [[ ! -r ${SIGN_KEY%.key}.pub ]] || scripts/sign.sh verify "${SIGN_KEY%.key}.pub" target/image
else
    say "not signed: set SIGN_KEY (scripts/sign.sh keys DIR creates one)"
fi
