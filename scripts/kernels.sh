#!/usr/bin/env bash
# Boots Debian's own kernels under qemu, without KVM, and runs one test program in each.
#
#   scripts/kernels.sh [--refresh] [--test PROGRAM] [NAME...]
#
#   NAME        a kernel of the table below; default: all of them
#   --test      the program to run as /test in the guest (default: kernel-check); it takes no arguments, finds the agent's
#               program as /beeline, and must print "RESULT: N passed, N failed" as a line of its own
#   --refresh   look for newer kernels in the archive now (otherwise once a week)
#
# The packages are downloaded and unpacked in a cache, and never installed: a private apt root per kernel leaves the apt
# sources and pins of this machine unchanged. No package scripts run, so this script creates modules.dep.
#
# The amd64 guests run the programs of `cargo build --workspace`, the arm64 guests those of `scripts/cross-arm64.sh
# --kernel-check`.
#
# Environment: BEELINE_CACHE (default ~/.cache/beeline), BEELINE_BOOT_LIMIT (seconds for one guest, default 900),
# BEELINE_DEBIAN_MIRROR and BEELINE_DEBIAN_SECURITY (archive addresses; default: those this machine's apt uses).
set -euo pipefail
cd "$(dirname "$0")/.."

# Name of the kernel, its architecture, its guests as PROCESSOR:COUNT, and the suites to take it from. The meta-package of
# the suites selects their newest kernel. The cloud flavour has everything that the tests need (BPF, cgroup2, IPv6, MPTCP,
# io_uring) and a third of the modules. `max` has the atomic instructions of Armv8.1. The Cortex-A72 does not have them: the
# kernel compiles the atomic operations of BPF to loops there.
kernels=(
    "oldest          amd64  max:2                     bookworm security:bookworm-security"
    "backport        amd64  max:2                     bookworm-backports"
    "newest          amd64  max:2                     trixie-backports"
    "arm64           arm64  max:1,max:2,cortex-a72:2  bookworm security:bookworm-security"
    "arm64-backport  arm64  max:2                     bookworm-backports"
)
# Modules that the guest's modprobe loads on demand. A module that a kernel has built in is skipped.
modules=(inet_diag tcp_diag udp_diag mptcp_diag veth dummy llc stp bridge)
mapfile -t -O "${#modules[@]}" modules <scripts/kernels/nfs-modules
mapfile -t -O "${#modules[@]}" modules <scripts/kernels/netfilter-modules

cache=${BEELINE_CACHE:-$HOME/.cache/beeline}/kernels
limit=${BEELINE_BOOT_LIMIT:-900}
out=target/kernels

log_line() { echo "kernels: $*"; }
die() { echo "kernels: $*" >&2; exit 1; }
. scripts/kernels/packages.sh

# --- the guest -------------------------------------------------------------------------------------------------

# Whether a file starts with the magic number of ELF. A program of --test may be a script.
is_elf() { [[ $(head -c 4 "$1" | od -An -tx1) == ' 7f 45 4c 46' ]]; }

# Copies a program into the guest. An ELF file must be one of the guest's architecture, whose `strip` is the first argument:
# with debug information the programs may not fit into the memory of the guest.
install_program() {
    local strip=$1 program=$2 as=$3
    install -D "$program" "$as" || return
    ! is_elf "$as" || "$strip" --strip-debug "$as" || die "$strip cannot strip $program: is it built for this guest?"
}

# Copies a program of this machine, and its shared libraries under their own paths.
add_program_amd64() {
    local stage=$1 program=$2 as=$3 library
    install_program strip "$program" "$stage$as" || return
    { ldd "$program" 2>/dev/null | grep -oE '/[^ ]+' || true; } | while read -r library; do
        [[ -e $stage$library ]] || install -D "$(readlink -f "$library")" "$stage$library"
    done
}

# Copies an arm64 program, and the libraries that it names from the unpacked packages.
add_program_arm64() {
    local stage=$1 program=$2 as=$3
    install_program aarch64-linux-gnu-strip "$program" "$stage$as" || return
    add_libraries_arm64 "$stage" "$program"
}

add_libraries_arm64() {
    local stage=$1 name found
    { aarch64-linux-gnu-readelf -d "$2" 2>/dev/null || true; } | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' |
        while read -r name; do
            [[ ! -e $stage/lib/$name ]] || continue
            found=$(find "$userland_root" -name "$name" | head -n 1)
            [[ $found ]] || die "no $name for arm64: add its package to the list in scripts/kernels/packages.sh"
            install -D "$(readlink -f "$found")" "$stage/lib/$name"
            add_libraries_arm64 "$stage" "$found" || exit
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

# The ip of busybox supports neither veth nor netns, so the guest gets iproute2's.
add_userland() {
    local stage=$1 architecture=$2 busybox=$userland_root/bin/busybox ip=$userland_root/bin/ip
    if [[ $architecture == amd64 ]]; then
        busybox=$(command -v busybox) ip=$(command -v ip)
    fi
    install -D "$busybox" "$stage/bin/busybox" &&
        "add_program_$architecture" "$stage" "$ip" /bin/ip &&
        "add_program_$architecture" "$stage" "${test:-${built[$architecture]}/kernel-check}" /test &&
        "add_program_$architecture" "$stage" "${built[$architecture]}/beeline" /beeline
}

build_initramfs() {
    local folder=$1 architecture=$2 version=$3 image=$4 stage
    stage=$(mktemp -d "$out/stage.XXXXXX")
    mkdir -p "$stage"/{bin,proc,sys,dev,etc}
    ln -s bin "$stage/sbin" # The kernel runs /sbin/modprobe.
    install -m 755 scripts/kernels/init "$stage/init"
    cp "$(kernel_file "$folder" config)" "$stage/etc/kernel.config"
    add_userland "$stage" "$architecture" || return
    add_modules "$stage" "$folder" "$version"
    (cd "$stage" && find . | cpio --quiet -o -H newc) | gzip -1 >"$image"
    rm -rf "$stage"
}

# KVM is not used, because cloud machines often lack it, and because the guests may have another architecture.
boot() {
    local architecture=$1 processor=$2 count=$3 kernel=$4 initrd=$5
    "boot_$architecture" "$processor" -accel tcg,thread=multi -smp "$count" -m 1024 \
        -nodefaults -no-reboot -nographic -serial stdio -kernel "$kernel" -initrd "$initrd" </dev/null
}

# la57 is off because five-level paging only slows TCG down. cx16 is off because qemu 7.2 sometimes corrupts the flags after
# a cmpxchg16b: one boot in three died in the slab allocator with a double fault. Without cx16 the kernel uses another code
# path, on which newer kernels cannot allocate socket storage (kmalloc_nolock fails) unless slab_debug is set. Linux 6.1
# ignores that option and does not need it.
boot_amd64() {
    local processor=$1
    shift
    timeout --kill-after=10 "$limit" qemu-system-x86_64 -cpu "$processor,la57=off,cx16=off" "$@" \
        -append 'console=ttyS0 quiet oops=panic panic=-1 slab_debug=F'
}

# The architected algorithm of pointer authentication takes most of the time of an emulated `max`; the other one is fast.
boot_arm64() {
    local processor=$1
    shift
    [[ $processor != max ]] || processor=max,pauth-impdef=on
    timeout --kill-after=10 "$limit" qemu-system-aarch64 -machine virt -cpu "$processor" "$@" \
        -append 'console=ttyAMA0 quiet oops=panic panic=-1'
}

# Removes the escape sequences of the firmware and carriage returns from the log.
strip_escapes() { sed -u -e 's/\x1bc//g; s/\x1b\[[0-9;?]*[A-Za-z]//g; s/\r//g'; }

# --- one kernel, and all of them -------------------------------------------------------------------------------

# Prints the failure that the console log shows; prints nothing on success.
failure_in_log() {
    local log=$1 status=$2 architecture=$3 result
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
    elif [[ $architecture == arm64 && ! $test ]] && ! grep -qE '^ok .* [1-9][0-9]* read barriers in ' "$log"; then
        echo "the programs have no read barriers, which this architecture needs"
    fi
}

# Called in a condition, where bash ignores -e, so commands that can fail return explicitly.
run_kernel() {
    local name=$1 architecture=$2 guests=$3 folder vmlinuz version guest failed=0
    shift 3
    folder=$(fetch "$name" "$architecture" "$@") || return
    if [[ $architecture != amd64 ]]; then
        userland_root=$(fetch_userland "$architecture") || return
    fi
    vmlinuz=$(kernel_file "$folder" vmlinuz) || return
    version=$(basename "$(find "$folder/root" -path '*/modules/*' -name kernel -printf '%h\n' | head -n 1)")
    build_initramfs "$folder" "$architecture" "$version" "$out/$name.cpio.gz" || return
    for guest in ${guests//,/ }; do
        run_guest "$name" "$architecture" "$version" "$vmlinuz" "${guest%:*}" "${guest#*:}" || failed=1
    done
    return $failed
}

run_guest() {
    local name=$1 architecture=$2 version=$3 vmlinuz=$4 processor=$5 count=$6
    local what log status=0 started=$SECONDS failure passed
    what="$name: $version, $processor, $count CPU$( ((count == 1)) || echo s)"
    log=$out/$name-$processor-$count.log
    log_line "$what: booting"
    boot "$architecture" "$processor" "$count" "$vmlinuz" "$out/$name.cpio.gz" 2>&1 | strip_escapes >"$log" || status=$?
    sed -n '/^guest: kernel/,$ s/^/    /p' "$log"
    failure=$(failure_in_log "$log" "$status" "$architecture")
    if [[ $failure ]]; then
        [[ $failure != 'no RESULT line' ]] || tail -n 20 "$log" | sed 's/^/    /'
        log_line "$what FAILED: $failure; console in $log"
        return 1
    fi
    passed=$(sed -n 's/^RESULT: \([0-9]*\) passed.*/\1/p' "$log" | tail -n 1)
    log_line "$what: $passed/$passed in $((SECONDS - started)) s, $(sed -n 's/^guest: up after //p' "$log") of it to boot"
    summary+=("$what: $passed/$passed$(sed -n 's/^ok *churn:/; churn:/p' "$log")")
}

target=${CARGO_TARGET_DIR:-target}
declare -A built=([amd64]=$target/debug [arm64]=$target/aarch64-unknown-linux-gnu/release)
test=
userland_root=
refresh=
only=()
summary=()
while (($#)); do
    case $1 in
        --refresh) refresh=yes ;;
        --test) test=${2:?--test needs a program} && shift ;;
        -h | --help) sed -n '2,/^set/ { /^#/ s/^# \?//p }' "$0" && exit ;;
        -*) die "unknown option $1" ;;
        *) only+=("$1") ;;
    esac
    shift
done

for name in "${only[@]}"; do
    # No pipe into grep -q: it ends at the first match, and pipefail would report the broken pipe.
    [[ " ${kernels[*]%% *} " == *" $name "* ]] || die "no kernel named '$name' in the table of $0"
done
selected=() tools=(busybox cpio gzip xz strip ip apt-get dpkg-deb)
for kernel in "${kernels[@]}"; do
    read -r name architecture _ <<<"$kernel"
    [[ ${#only[@]} == 0 || " ${only[*]} " == *" $name "* ]] || continue
    selected+=("$kernel")
    case $architecture in
        amd64) tools+=(qemu-system-x86_64) next='cargo build --workspace' ;;
        arm64) tools+=(qemu-system-aarch64 aarch64-linux-gnu-{readelf,strip}) next='scripts/cross-arm64.sh --kernel-check' ;;
    esac
    for program in ${test:-"${built[$architecture]}/kernel-check"} "${built[$architecture]}/beeline"; do
        [[ -x $program ]] || die "no $program: run $next first"
    done
done
for tool in "${tools[@]}"; do
    command -v "$tool" >/dev/null || die "$tool is missing: run scripts/setup.sh kernels"
done
[[ $(uname -m) == x86_64 ]] || die "this machine is $(uname -m), but the script needs the programs of an x86_64 machine"
[[ -r $keyring ]] || die "no $keyring: install debian-archive-keyring"

mkdir -p "$out"
failed=()
for kernel in "${selected[@]}"; do
    read -ra words <<<"$kernel"
    run_kernel "${words[@]}" || failed+=("${words[0]}")
done
((${#summary[@]} == 0)) || printf 'kernels: passed: %s\n' "${summary[@]}"
[[ ${#failed[@]} == 0 ]] || die "failed: ${failed[*]}"
log_line "all passed"
