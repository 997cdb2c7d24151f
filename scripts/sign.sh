#!/usr/bin/env bash
# Signs what is released with a key of the releaser, offline, and verifies it: minisign, from Debian's package of that name.
#
#   scripts/sign.sh keys DIR              create DIR/beeline.key (asks for a password; keep it offline) and DIR/beeline.pub
#   scripts/sign.sh sign KEY DIR          write DIR/SHA256SUMS of all files in DIR, and DIR/SHA256SUMS.minisig
#   scripts/sign.sh verify PUBLIC DIR     check the signature, and each file in DIR
#
# One signature covers all files by their checksums. BEELINE_SIGN_UNENCRYPTED=1 creates a key without a password, for tests.
set -euo pipefail

die() {
    printf 'sign: %s\n    next: %s\n' "$1" "$2" >&2
    exit 1
}
usage() { die "${1:-wrong arguments}" "scripts/sign.sh keys DIR | sign KEY DIR | verify PUBLIC DIR"; }
command -v minisign >/dev/null || die "minisign is missing" "scripts/setup.sh image, or apt-get install minisign"

# The files that are signed: all but the signature's own.
files() { find . -maxdepth 1 -type f ! -name 'SHA256SUMS*' -printf '%P\n' | LC_ALL=C sort; }

keys() {
    local dir=$1
    mkdir -p "$dir"
    [[ ! -e $dir/beeline.key ]] || die "$dir/beeline.key exists" "choose another directory: a lost key cannot be made again"
    # A new key must not be readable by others at any moment.
    (umask 077 && minisign -G ${BEELINE_SIGN_UNENCRYPTED:+-W} -f -s "$dir/beeline.key" -p "$dir/beeline.pub" >/dev/null)
    chmod 644 "$dir/beeline.pub"
    echo "sign: publish $dir/beeline.pub, and keep $dir/beeline.key offline"
}

sign() {
    local key=$1 dir=$2
    [[ -r $key ]] || die "the key $key cannot be read" "scripts/sign.sh keys DIR"
    key=$(realpath "$key")
    cd "$dir"
    mapfile -t all < <(files)
    ((${#all[@]})) || die "$dir has no files" "make image"
    sha256sum -- "${all[@]}" >SHA256SUMS
    minisign -S -s "$key" -m SHA256SUMS -t "beeline: ${all[*]}" >/dev/null
    echo "sign: signed ${#all[@]} files: $dir/SHA256SUMS.minisig"
}

verify() {
    local public=$1 dir=$2 listed present
    [[ -r $public ]] || die "the public key $public cannot be read" "get beeline.pub from the releaser"
    public=$(realpath "$public")
    cd "$dir"
    minisign -V -q -p "$public" -m SHA256SUMS || die "the signature of $dir/SHA256SUMS is not valid" "do not use these files"
    sha256sum --check --quiet --strict SHA256SUMS || die "a file in $dir is not the one that was signed" "do not use these files"
    listed=$(sed 's/^[^ ]* [ *]//' SHA256SUMS) present=$(files)
    [[ $listed == "$present" ]] || die "$dir has files that were not signed, or lacks some" "diff SHA256SUMS with ls"
    echo "sign: signature and files are valid: $(tr '\n' ' ' <<<"$listed")"
}

case ${1:-} in
    keys) (($# == 2)) || usage && keys "$2" ;;
    sign) (($# == 3)) || usage && sign "$2" "$3" ;;
    verify) (($# == 3)) || usage && verify "$2" "$3" ;;
    *) usage "unknown command '${1:-}'" ;;
esac
