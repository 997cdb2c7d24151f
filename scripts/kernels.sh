#!/usr/bin/env bash
# Boots Debian's own kernels under qemu, without KVM, and runs one test program in each.
#
#   scripts/kernels.sh [--refresh] [--test PROGRAM] [NAME...]
#
#   NAME        a kernel of the table below; default: all of them
#   --test      the program to run as /test in the guest (default target/debug/kernel-check); it takes no arguments,
#               finds target/debug/beeline as /beeline, and must print "RESULT: N passed, N failed" as a line of its own
#   --refresh   look for newer kernels in the archive now (otherwise once a week)
#
# The packages are downloaded and unpacked in a cache, and never installed: a private apt root per kernel leaves the apt
# sources and pins of this machine unchanged. No package scripts run, so this script creates modules.dep.
#
# Environment: BEELINE_CACHE (default ~/.cache/beeline), BEELINE_BOOT_LIMIT (seconds for one guest, default 600),
# BEELINE_DEBIAN_MIRROR and BEELINE_DEBIAN_SECURITY (archive addresses; default: those this machine's apt uses).
set -euo pipefail
cd "$(dirname "$0")/.."

# Name of the kernel and the suites to take it from. The meta-package of the suites selects their newest kernel. The cloud
# flavour has everything that the tests need (BPF, cgroup2, IPv6, MPTCP, io_uring) and a third of the modules.
kernels=(
    "oldest    bookworm security:bookworm-security"
    "backport  bookworm-backports"
    "newest    trixie-backports"
)
# Modules that the guest's modprobe loads on demand. A module that a kernel has built in is skipped.
modules=(inet_diag tcp_diag udp_diag mptcp_diag veth dummy llc stp bridge)
mapfile -t -O "${#modules[@]}" modules <scripts/kernels/nfs-modules

cache=${BEELINE_CACHE:-$HOME/.cache/beeline}/kernels
limit=${BEELINE_BOOT_LIMIT:-600}
out=target/kernels
keyring=/usr/share/keyrings/debian-archive-keyring.gpg

log_line() { echo "kernels: $*"; }
die() { echo "kernels: $*" >&2; exit 1; }

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
    local tool=$1 root=$2
    shift 2
    "$tool" -q -o Dir::Etc::sourcelist="$root/sources.list" -o Dir::Etc::sourceparts=/dev/null \
        -o Dir::Etc::preferences=/dev/null -o Dir::Etc::preferencesparts=/dev/null \
        -o Dir::State="$root/state" -o Dir::State::status="$root/status" -o Dir::Cache="$root/cache" \
        -o APT::Architecture=amd64 -o APT::Architectures=amd64 -o APT::Sandbox::User=root \
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
    local name=$1 root=$2
    shift 2
    mkdir -p "$root"/{state/lists/partial,cache/archives/partial}
    touch "$root/status"
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
    local name=$1 root=$cache/$1/apt image folder package
    shift
    update_lists "$name" "$root" "$@" >&2
    image=$(depends_on "$root" linux-image-cloud-amd64 '^linux-image-[0-9]' | head -n 1)
    [[ $image ]] || die "$name: no linux-image-cloud-amd64 in $*"
    folder=$cache/$name/$image
    if [[ ! -e $folder/complete ]]; then
        rm -rf "$folder"
        mkdir -p "$folder/deb"
        log_line "$name: downloading $image" >&2
        for package in $(kernel_packages "$root" "$image"); do
            (cd "$folder/deb" && private_apt apt-get "$root" download "$package") >"$root/download.log" 2>&1 ||
                die "$name: download of $package failed: $(tail -n 1 "$root/download.log")"
        done
        unpack "$folder"
        touch "$folder/complete"
        find "$cache/$name" -maxdepth 1 -name 'linux-image-*' ! -name "$image" -exec rm -rf {} + # An older kernel.
    fi
    echo "$folder"
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

# --- the guest -------------------------------------------------------------------------------------------------

# Copies a program, and its shared libraries under their own paths.
add_program() {
    local stage=$1 program=$2 as=$3 library
    install -D "$program" "$stage$as"
    strip --strip-debug "$stage$as" 2>/dev/null || true # Not every test program is an ELF file.
    { ldd "$program" 2>/dev/null || true; } | grep -oE '/[^ ]+' | while read -r library; do
        [[ -e $stage$library ]] || install -D "$(readlink -f "$library")" "$stage$library"
    done
}

add_modules() {
    local stage=$1 folder=$2 version=$3 tree module file
    tree=$stage/lib/modules/$version
    mkdir -p "$tree"
    for module in "${modules[@]}"; do
        file=$(find "$folder/root" -path '*/kernel/*' -name "$module.ko*" | head -n 1)
        case $file in
            '') ;;
            *.xz) xz -dc "$file" >"$tree/$module.ko" ;;
            *.zst) zstd -qdc "$file" >"$tree/$module.ko" ;;
            *) cp "$file" "$tree/" ;;
        esac
    done
    busybox depmod -b "$stage" "$version" || die "depmod failed for $version"
}

build_initramfs() {
    local folder=$1 version=$2 image=$3 stage
    stage=$(mktemp -d "$out/stage.XXXXXX")
    mkdir -p "$stage"/{bin,proc,sys,dev,etc}
    ln -s bin "$stage/sbin" # The kernel runs /sbin/modprobe.
    install -D "$(command -v busybox)" "$stage/bin/busybox"
    install -m 755 scripts/kernels/init "$stage/init"
    cp "$(kernel_file "$folder" config)" "$stage/etc/kernel.config"
    add_program "$stage" "$(command -v ip)" /bin/ip # The ip of busybox supports neither veth nor netns.
    add_program "$stage" "$program" /test
    add_program "$stage" "$beeline" /beeline
    add_modules "$stage" "$folder" "$version"
    (cd "$stage" && find . | cpio --quiet -o -H newc) | gzip -1 >"$image"
    rm -rf "$stage"
}

# KVM is not used, because cloud machines often lack it. la57 is off because five-level paging only slows TCG down. cx16 is
# off because qemu 7.2 sometimes corrupts the flags after a cmpxchg16b: one boot in three died in the slab allocator with
# a double fault. Without cx16 the kernel uses another code path, on which newer kernels cannot allocate socket storage
# (kmalloc_nolock fails) unless slab_debug is set. Linux 6.1 ignores that option and does not need it.
boot() {
    timeout --kill-after=10 "$limit" qemu-system-x86_64 \
        -accel tcg,thread=multi -cpu max,la57=off,cx16=off -smp 2 -m 1024 \
        -nodefaults -no-reboot -nographic -serial stdio \
        -kernel "$1" -initrd "$2" -append 'console=ttyS0 quiet oops=panic panic=-1 slab_debug=F' </dev/null
}

# Removes the escape sequences of the firmware and carriage returns from the log.
strip_escapes() { sed -u -e 's/\x1bc//g; s/\x1b\[[0-9;?]*[A-Za-z]//g; s/\r//g'; }

# --- one kernel, and all of them -------------------------------------------------------------------------------

# Prints the failure that the console log shows; prints nothing on success.
failure_in_log() {
    local log=$1 status=$2 result
    result=$(grep -oE '^RESULT: [0-9]+ passed, [0-9]+ failed$' "$log" | tail -n 1)
    if [[ $status == 124 || $status == 137 ]]; then
        echo "timed out after $limit s"
    elif [[ ! $result ]]; then
        echo "no RESULT line"
    elif [[ $result != *' 0 failed' ]]; then
        echo "${result#RESULT: }"
    elif [[ $result == 'RESULT: 0 passed'* ]]; then
        echo "the test checked nothing"
    elif ! grep -q '^guest: exit 0$' "$log"; then
        echo "RESULT is good, but $(grep '^guest: exit' "$log" || echo 'the guest ended early')"
    elif grep -q '^guest: the kernel warned' "$log"; then
        echo "the kernel warned during the test"
    fi
}

# Called in a condition, where bash ignores -e, so commands that can fail return explicitly.
run_kernel() {
    local name=$1 folder vmlinuz version log=$out/$1.log status=0 started failure
    folder=$(fetch "$@") || return
    vmlinuz=$(kernel_file "$folder" vmlinuz) || return
    version=$(basename "$(find "$folder/root" -path '*/modules/*' -name kernel -printf '%h\n' | head -n 1)")
    build_initramfs "$folder" "$version" "$out/$name.cpio.gz" || return

    log_line "$name: booting $version"
    started=$SECONDS
    boot "$vmlinuz" "$out/$name.cpio.gz" 2>&1 | strip_escapes >"$log" || status=$?
    sed -n '/^guest: kernel/,$ s/^/    /p' "$log"
    failure=$(failure_in_log "$log" "$status")
    if [[ $failure ]]; then
        [[ $failure != 'no RESULT line' ]] || tail -n 20 "$log" | sed 's/^/    /'
        log_line "$name: $version FAILED: $failure; console in $log"
        return 1
    fi
    log_line "$name: $version $(grep '^RESULT' "$log" | tail -n 1 | cut -d' ' -f2-) in $((SECONDS - started)) s," \
        "$(sed -n 's/^guest: up after //p' "$log") of it to boot"
}

program=target/debug/kernel-check
beeline=target/debug/beeline
refresh=
only=()
while (($#)); do
    case $1 in
        --refresh) refresh=yes ;;
        --test) program=${2:?--test needs a program} && shift ;;
        -h | --help) sed -n '2,/^set/ { /^#/ s/^# \?//p }' "$0" && exit ;;
        -*) die "unknown option $1" ;;
        *) only+=("$1") ;;
    esac
    shift
done

for tool in qemu-system-x86_64 busybox cpio gzip xz strip ip apt-get dpkg-deb; do
    command -v "$tool" >/dev/null || die "$tool is missing: run scripts/setup.sh kernels"
done
[[ $(uname -m) == x86_64 ]] || die "the guests are x86_64, but this machine is $(uname -m): run on an x86_64 machine"
for built in "$program" "$beeline"; do
    [[ -x $built ]] || die "no $built: run cargo build --workspace first"
done
[[ -r $keyring ]] || die "no $keyring: install debian-archive-keyring"
for name in "${only[@]}"; do
    # No pipe into grep -q: it ends at the first match, and pipefail would report the broken pipe.
    [[ " ${kernels[*]%% *} " == *" $name "* ]] || die "no kernel named '$name' in the table of $0"
done

mkdir -p "$out"
failed=()
for kernel in "${kernels[@]}"; do
    read -ra words <<<"$kernel"
    [[ ${#only[@]} == 0 || " ${only[*]} " == *" ${words[0]} "* ]] || continue
    run_kernel "${words[@]}" || failed+=("${words[0]}")
done
[[ ${#failed[@]} == 0 ]] || die "failed: ${failed[*]}"
log_line "all passed"
