#!/usr/bin/env bash
# Runs the agent under deploy/profiles/apparmor in Debian's kernel, under qemu: scripts/apparmor.sh [KERNEL...]
#
# KERNEL is a name of the table in scripts/kernels.sh; default: oldest. The profile is compiled here, and the test program that
# the guest runs carries it.
set -euo pipefail
cd "$(dirname "$0")/.."

command -v apparmor_parser >/dev/null || {
    printf 'apparmor: apparmor_parser is missing\n    next: scripts/setup.sh check\n' >&2
    exit 1
}
test=target/kernels/apparmor-test
mkdir -p target/kernels
{
    cat scripts/kernels/apparmor
    # The features of the kernels that Debian's AppArmor supports, not those of this machine.
    apparmor_parser --stdout --skip-cache --features-file /usr/share/apparmor-features/features deploy/profiles/apparmor 2>/dev/null |
        base64
} >"$test"
chmod 755 "$test"
(($#)) || set -- oldest
scripts/kernels.sh --test "$test" "$@"
