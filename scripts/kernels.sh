#!/usr/bin/env bash
# Boots Debian's own kernels under qemu, without KVM, and runs one test program in each.
#
#   scripts/kernels.sh [--refresh] [--test PROGRAM] [NAME...]
#
#   NAME        a kernel of the table below; default: all of them
#   --test      the program to run as /test in the guest (default target/debug/kernel-floor); it takes no arguments,
#               finds target/debug/beeline as /beeline, and must print "RESULT: N passed, N failed" as a line of its own
#   --refresh   ask the archive for newer kernels now (otherwise once a week)
#
# The packages are downloaded and unpacked in a cache, never installed: a private apt root per kernel keeps this
# machine's sources and pins as they are. No package scripts run, so modules.dep is made here.
#
# Environment: BEELINE_CACHE (default ~/.cache/beeline), BEELINE_BOOT_LIMIT (seconds for one guest, default 600),
# BEELINE_DEBIAN_MIRROR and BEELINE_DEBIAN_SECURITY (archive addresses; default: those this machine's apt uses).
set -euo pipefail
cd "$(dirname "$0")/.."

# name, what it is for, and the suites that offer it. The newest kernel of the suites is taken, by their own
# meta-package. The cloud flavour has all we need (BPF, cgroup2, IPv6, MPTCP, io_uring) and a third of the modules.
kernels=(
    "floor     bookworm security:bookworm-security"
    "backport  bookworm-backports"
    "newest    trixie-backports"
)
# Loaded on demand by the guest's modprobe. What a kernel has built in is not looked for.
modules=(inet_diag tcp_diag udp_diag mptcp_diag veth dummy llc stp bridge)

cache=${BEELINE_CACHE:-$HOME/.cache/beeline}/kernels
limit=${BEELINE_BOOT_LIMIT:-600}
out=target/kernels
keyring=/usr/share/keyrings/debian-archive-keyring.gpg

say() { echo "kernels: $*"; }
die() { echo "kernels: $*" >&2; exit 1; }

# --- where Debian's archive is ---------------------------------------------------------------------------------

# The address that this machine's own apt uses for a release, so that a local mirror or proxy is honoured.
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
        [[ $uri ]] || continue # no security archive configured here: the point release will do
        echo "deb [signed-by=$keyring] $uri ${suite#security:} main"
    done >"$root/sources.list"
}

# Lists of suites at most a week old; without a network, what an earlier run left will do.
update_lists() {
    local name=$1 root=$2
    shift 2
    mkdir -p "$root"/{state/lists/partial,cache/archives/partial}
    touch "$root/status"
    if [[ ! $refresh && -n $(find "$root/updated" -mtime -7 2>/dev/null) ]]; then
        return
    fi
    write_sources "$root" "$@"
    say "$name: reading the package lists of $*"
    if private_apt apt-get "$root" update >"$root/update.log" 2>&1 && ! grep -q '^[EW]: Failed' "$root/update.log"; then
        touch "$root/updated"
    elif [[ -e $root/updated ]]; then
        say "$name: the archive does not answer; using the lists of $(date -r "$root/updated" +%F)"
    else
        sed 's/^/    /' "$root/update.log" >&2
        die "$name: cannot read the package lists of $*"
    fi
}

# --- the kernel itself -----------------------------------------------------------------------------------------

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

# Prints the folder of the unpacked kernel; everything else goes to stderr.
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
        say "$name: downloading $image" >&2
        for package in $(kernel_packages "$root" "$image"); do
            (cd "$folder/deb" && private_apt apt-get "$root" download "$package") >"$root/download.log" 2>&1 ||
                die "$name: download of $package failed: $(tail -n 1 "$root/download.log")"
        done
        unpack "$folder"
        touch "$folder/complete"
        find "$cache/$name" -maxdepth 1 -name 'linux-image-*' ! -name "$image" -exec rm -rf {} + # superseded
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

# Images moved from /boot into the module folder with the split packages.
kernel_file() {
    local found
    found=$(find "$1/root" \( -path "*/boot/$2-*" -o -path "*/modules/*/$2" \) -type f | head -n 1)
    [[ $found ]] || die "no $2 in $1"
    echo "$found"
}

# --- the guest -------------------------------------------------------------------------------------------------

# A program and the shared libraries it names, under the same paths.
add_program() {
    local stage=$1 program=$2 as=$3 library
    install -D "$program" "$stage$as"
    strip --strip-debug "$stage$as" 2>/dev/null || true # not every test program is an ELF file
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
    ln -s bin "$stage/sbin" # the kernel asks for /sbin/modprobe
    install -D "$(command -v busybox)" "$stage/bin/busybox"
    install -m 755 scripts/kernels/init "$stage/init"
    cp "$(kernel_file "$folder" config)" "$stage/etc/kernel.config"
    add_program "$stage" "$(command -v ip)" /bin/ip # busybox's own ip knows no veth and no netns
    add_program "$stage" "$program" /test
    add_program "$stage" "$beeline" /beeline
    add_modules "$stage" "$folder" "$version"
    (cd "$stage" && find . | cpio --quiet -o -H newc) | gzip -1 >"$image"
    rm -rf "$stage"
}

# No KVM: this must run where a cloud machine offers none. Five-level paging is only work for TCG, so la57 is off. cx16
# is off because qemu 7.2 now and then corrupts the flags after a cmpxchg16b: one boot in three died in the slab
# allocator with a double fault; without it the kernel takes its other path. On that path newer kernels have no memory
# for socket storage (kmalloc_nolock gives none) unless the allocator checks itself, hence slab_debug; 6.1 does not know
# the word, and does not need it.
boot() {
    timeout --kill-after=10 "$limit" qemu-system-x86_64 \
        -accel tcg,thread=multi -cpu max,la57=off,cx16=off -smp 2 -m 1024 \
        -nodefaults -no-reboot -nographic -serial stdio \
        -kernel "$1" -initrd "$2" -append 'console=ttyS0 quiet oops=panic panic=-1 slab_debug=F' </dev/null
}

# The firmware clears the screen first; a log wants neither that nor carriage returns.
plain() { sed -u -e 's/\x1bc//g; s/\x1b\[[0-9;?]*[A-Za-z]//g; s/\r//g'; }

# --- one kernel, and all of them -------------------------------------------------------------------------------

# What went wrong, from the console alone; nothing if all is well.
verdict() {
    local log=$1 status=$2 result
    result=$(grep -oE '^RESULT: [0-9]+ passed, [0-9]+ failed$' "$log" | tail -n 1)
    if [[ $status == 124 || $status == 137 ]]; then
        echo "not done after $limit s"
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

# Called in a condition, where bash ignores -e: what can fail says so itself.
run_kernel() {
    local name=$1 folder vmlinuz version log=$out/$1.log status=0 started wrong
    folder=$(fetch "$@") || return
    vmlinuz=$(kernel_file "$folder" vmlinuz) || return
    version=$(basename "$(find "$folder/root" -path '*/modules/*' -name kernel -printf '%h\n' | head -n 1)")
    build_initramfs "$folder" "$version" "$out/$name.cpio.gz" || return

    say "$name: booting $version"
    started=$SECONDS
    boot "$vmlinuz" "$out/$name.cpio.gz" 2>&1 | plain >"$log" || status=$?
    sed -n '/^guest: kernel/,$ s/^/    /p' "$log"
    wrong=$(verdict "$log" "$status")
    if [[ $wrong ]]; then
        [[ $wrong != 'no RESULT line' ]] || tail -n 20 "$log" | sed 's/^/    /'
        say "$name: $version FAILED: $wrong; console in $log"
        return 1
    fi
    say "$name: $version $(grep '^RESULT' "$log" | tail -n 1 | cut -d' ' -f2-) in $((SECONDS - started)) s," \
        "$(sed -n 's/^guest: up after //p' "$log") of it to boot"
}

program=target/debug/kernel-floor
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
[[ $(uname -m) == x86_64 ]] || die "the guests are x86_64, and so must the test program be; this is $(uname -m)"
for built in "$program" "$beeline"; do
    [[ -x $built ]] || die "no $built: run cargo build --workspace first"
done
[[ -r $keyring ]] || die "no $keyring: install debian-archive-keyring"
for name in "${only[@]}"; do
    printf '%s\n' "${kernels[@]}" | grep -q "^$name " || die "no kernel named '$name' in the table of $0"
done

mkdir -p "$out"
failed=()
for kernel in "${kernels[@]}"; do
    read -ra words <<<"$kernel"
    [[ ${#only[@]} == 0 || " ${only[*]} " == *" ${words[0]} "* ]] || continue
    run_kernel "${words[@]}" || failed+=("${words[0]}")
done
[[ ${#failed[@]} == 0 ]] || die "failed: ${failed[*]}"
say "all passed"
