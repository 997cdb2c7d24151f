#!/usr/bin/env bash
# Runs the fuzzers one after the other and prints how many inputs each has tried: scripts/fuzz.sh [TARGET...]
#
#   FUZZ_SECONDS=60    how long each target runs
#   FUZZ_JOBS=1        processes per target
#
# Without arguments all targets of fuzz/Cargo.toml run. New inputs are stored in target/fuzz/corpus/TARGET, an input that
# panics in target/fuzz/found/TARGET-...; the corpora in fuzz/corpus are only read. Copy an input that should be replayed by
# `make test` to fuzz/corpus/TARGET under a name that says what it is.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${FUZZ_SECONDS:-60}
jobs=${FUZZ_JOBS:-1}
mapfile -t all < <(sed -n '/^\[\[bin\]\]/{n;s/^name = "\(.*\)"/\1/p}' fuzz/Cargo.toml)
(($#)) && targets=("$@") || targets=("${all[@]}")
mkdir -p target/fuzz/found target/fuzz/log

for target in "${targets[@]}"; do
    [[ " ${all[*]} " == *" $target "* ]] || {
        printf 'fuzz: there is no target %s\n    next: one of %s\n' "$target" "${all[*]}" >&2
        exit 1
    }
done

# Stable Rust has no sanitizers, hence -s none: the fuzzer looks for panics, for inputs that take more than 10 seconds and for
# more than 2 GB of memory.
build() { cargo fuzz build -s none --target-dir target/fuzz; }

run() {
    local target=$1 log=target/fuzz/log/$1.log
    mkdir -p "target/fuzz/corpus/$target"
    cargo fuzz run -s none --target-dir target/fuzz "$target" "target/fuzz/corpus/$target" "fuzz/corpus/$target" -- \
        -max_total_time="$seconds" -timeout=10 -print_final_stats=1 -max_len=8192 -fork=$((jobs > 1 ? jobs : 0)) \
        -artifact_prefix="$PWD/target/fuzz/found/$target-" >"$log" 2>&1
}

inputs_of() {
    local count
    count=$(sed -n 's/^stat::number_of_executed_units: *//p; s/^#\([0-9]*\): cov:.*/\1/p' "target/fuzz/log/$1.log" | tail -n 1)
    echo "${count:-0}"
}

build
total=0 panics=0
for target in "${targets[@]}"; do
    if run "$target"; then result=passed; else
        result="FAILED: target/fuzz/log/$target.log"
        panics=$((panics + 1))
    fi
    count=$(inputs_of "$target")
    total=$((total + count))
    printf 'fuzz: %-18s %12d inputs  %s\n' "$target" "$count" "$result"
done
echo "fuzz: $total inputs in all, ${#targets[@]} targets, $panics with a panic"
((panics == 0 && total > 0))
