# Sourced by scripts/kernels.sh: downloads Debian's kernels into $cache and unpacks them, without installing anything.
# shellcheck shell=bash disable=SC2154

keyring=/usr/share/keyrings/debian-archive-keyring.gpg
# What a guest of another architecture needs beside the test programs. The guests of this machine's architecture get its own
# busybox, ip and libraries.
userland=(busybox-static iproute2 libbpf1 libbsd0 libc6 libcap2 libelf1 libgcc-s1 libmd0 libmnl0 zlib1g)

# --- address of the Debian archive ----------------------------------------------------------------------------

# The archive address that apt of this machine uses for a release, so that a local mirror or proxy is used.
own_archive() {
    apt-get indextargets --format '$(RELEASE) $(REPO_URI)' 2>/dev/null | awk -v r="$1" '$1 == r { print $2; exit }'
}

archive() {
    local host uri
    host=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
    case $1 in
        main) uri=${BEELINE_DEBIAN_MIRROR:-$(own_archive "$host")} ;;
        security) uri=${BEELINE_DEBIAN_SECURITY:-$(own_archive "$host-security")} ;;
    esac
    [[ $uri || $1 == security ]] ||
        die "apt's sources name no archive for '$host': set BEELINE_DEBIAN_MIRROR to a Debian archive"
    echo "$uri"
}

# --- a private apt root per kernel -----------------------------------------------------------------------------

private_apt() {
    local tool=$1 root=$2 architecture
    architecture=$(cat "$root/architecture")
    shift 2
    "$tool" -q -o Dir::Etc::sourcelist="$root/sources.list" -o Dir::Etc::sourceparts=/dev/null \
        -o Dir::Etc::preferences=/dev/null -o Dir::Etc::preferencesparts=/dev/null \
        -o Dir::State="$root/state" -o Dir::State::status="$root/status" -o Dir::Cache="$root/cache" \
        -o APT::Architecture="$architecture" -o APT::Architectures="$architecture" -o APT::Sandbox::User=root \
        -o Acquire::Languages=none -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false \
        -o Acquire::Retries=3 "$@"
}

write_sources() {
    local root=$1 suite uri
    shift
    for suite in "$@"; do
        case $suite in
            security:*) uri=$(archive security) ;;
            *) uri=$(archive main) ;;
        esac
        [[ $uri ]] || continue # No security archive is configured: the point release is used.
        echo "deb [signed-by=$keyring] $uri ${suite#security:} main"
    done >"$root/sources.list"
}

# Updates package lists that are older than a week. Without a network, the lists of an earlier run are used.
update_lists() {
    local name=$1 root=$2 architecture=$3
    shift 3
    mkdir -p "$root"/{state/lists/partial,cache/archives/partial}
    touch "$root/status"
    echo "$architecture" >"$root/architecture"
    if [[ ! $refresh && -n $(find "$root/updated" -mtime -7 2>/dev/null) ]]; then
        return
    fi
    write_sources "$root" "$@"
    log_line "$name: reading the package lists of $*"
    if private_apt apt-get "$root" update >"$root/update.log" 2>&1 && ! grep -q '^[EW]: Failed' "$root/update.log"; then
        touch "$root/updated"
    elif [[ -e $root/updated ]]; then
        log_line "$name: the archive does not respond; using the lists of $(date -r "$root/updated" +%F)"
    else
        sed 's/^/    /' "$root/update.log" >&2
        die "$name: cannot read the package lists of $*"
    fi
}

# --- kernel packages -------------------------------------------------------------------------------------------

# Direct dependencies of a package that match a pattern.
depends_on() {
    private_apt apt-cache "$1" depends --no-recommends --no-suggests "$2" 2>/dev/null |
        awk -v p="$3" '$1 == "Depends:" && $2 ~ p { print $2 }'
}

# The packages to unpack: newer kernels split the image into linux-binary and linux-modules.
kernel_packages() {
    local root=$1 image=$2
    echo "$image"
    depends_on "$root" "$image" '^linux-(binary|modules|base)-[0-9]'
}

# Prints the directory of the unpacked kernel; all other output goes to stderr.
fetch() {
    local name=$1 architecture=$2 root=$cache/$1/apt meta image folder
    shift 2
    meta=linux-image-cloud-$architecture
    update_lists "$name" "$root" "$architecture" "$@" >&2
    image=$(depends_on "$root" "$meta" '^linux-image-[0-9]' | head -n 1)
    [[ $image ]] || die "$name: no $meta in $*"
    folder=$cache/$name/$image
    if [[ ! -e $folder/complete ]]; then
        log_line "$name: downloading $image" >&2
        # shellcheck disable=SC2046
        download "$name" "$folder" $(kernel_packages "$root" "$image")
        find "$cache/$name" -maxdepth 1 -name 'linux-image-*' ! -name "$image" -exec rm -rf {} + # An older kernel.
    fi
    echo "$folder"
}

# Prints the directory of Debian 12's programs and libraries of another architecture; all other output goes to stderr.
fetch_userland() {
    local architecture=$1 name=userland-$1
    update_lists "$name" "$cache/$name/apt" "$architecture" bookworm security:bookworm-security >&2
    if [[ ! -e $cache/$name/unpacked/complete || $refresh ]]; then
        log_line "$name: downloading busybox, ip and their libraries" >&2
        download "$name" "$cache/$name/unpacked" "${userland[@]}"
    fi
    echo "$cache/$name/unpacked/root"
}

# Downloads these packages and unpacks them below FOLDER/root.
download() {
    local name=$1 folder=$2 root=$cache/$1/apt package
    shift 2
    rm -rf "$folder"
    mkdir -p "$folder/deb"
    for package in "$@"; do
        (cd "$folder/deb" && private_apt apt-get "$root" download "$package") >"$root/download.log" 2>&1 ||
            die "$name: download of $package failed: $(tail -n 1 "$root/download.log")"
    done
    unpack "$folder"
    touch "$folder/complete"
}

unpack() {
    local folder=$1 deb
    for deb in "$folder"/deb/*.deb; do
        dpkg-deb -x "$deb" "$folder/root" || die "cannot unpack $deb"
    done
    rm -rf "$folder/deb"
}

# The split packages have the image in the module directory instead of /boot.
kernel_file() {
    local found
    found=$(find "$1/root" \( -path "*/boot/$2-*" -o -path "*/modules/*/$2" \) -type f | head -n 1)
    [[ $found ]] || die "no $2 in $1"
    echo "$found"
}
