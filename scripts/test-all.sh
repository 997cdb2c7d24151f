#!/usr/bin/env bash
# Runs every test part that has not yet passed on this tree, and prints a table of all parts.
#
#   scripts/test-all.sh [PART...]      run these parts (default: all) and print the table
#   scripts/test-all.sh --status       print the table, run nothing
#   scripts/test-all.sh --list         print the names of the parts
#
# A part is a make target. The state is kept in ${BEELINE_CACHE:-~/.cache/beeline}/test-all/TREE: one file per part with
# its result, date and duration, and its log beside it. TREE is the hash of all tracked and untracked files, so every edit
# starts a new state. A part that passed on this tree is skipped; a part that fails does not stop the others. The exit
# code is 0 only when every part has passed on this tree.
set -euo pipefail
cd "$(dirname "$0")/.."

parts=(test check release release-arm64 image test-chart test-rights test-deb conformance test-kernels test-outside
    test-edge test-vm fuzz bench bench-outside)

# The hash of the working tree as it is, without touching the index of the repository.
tree_hash() {
    local index
    index=$(mktemp)
    # With its time stamp: git compares the content of a file only if the file is not older than the index.
    cp --preserve=timestamps "$(git rev-parse --git-path index)" "$index"
    GIT_INDEX_FILE=$index git add --all
    GIT_INDEX_FILE=$index git write-tree
    rm -f "$index"
}

tree=$(tree_hash)
state=${BEELINE_CACHE:-$HOME/.cache/beeline}/test-all/$tree
make=${BEELINE_MAKE:-make}

# The variables that make a part longer or more random than in `make test`.
run_part() {
    case $1 in
        test) BEELINE_LONG=1 BEELINE_SEED=$SRANDOM "$make" test ;;
        # The plots of the README are part of the tree; this run draws its own elsewhere.
        bench) "$make" bench BENCH_IMAGES=target/bench ;;
        *) "$make" "$1" ;;
    esac
}

is_part() {
    local part
    for part in "${parts[@]}"; do [[ $part != "$1" ]] || return 0; done
    return 1
}

# Every part with its result on this tree; fails unless all have passed.
table() {
    local part result date seconds all=0 passed=0
    printf '\ntest-all on tree %s\n  %-14s  %-8s  %8s  %s\n' "${tree:0:12}" part result seconds date
    for part in "${parts[@]}"; do
        result='not run' date='' seconds=''
        [[ ! -e $state/$part ]] || read -r result seconds date <"$state/$part"
        printf '  %-14s  %-8s  %8s  %s\n' "$part" "$result" "$seconds" "$date"
        all=$((all + 1))
        [[ $result != passed ]] || passed=$((passed + 1))
    done
    printf '  %d of %d parts passed; logs in %s\n' "$passed" "$all" "$state"
    ((passed == all))
}

case ${1:-} in
    --list) printf '%s\n' "${parts[@]}"; exit ;;
    --status) table; exit ;;
    -*) echo "test-all: unknown option $1; use --status, --list or names of parts" >&2; exit 2 ;;
esac
for part in "$@"; do
    is_part "$part" || { echo "test-all: unknown part '$part'; the parts are: ${parts[*]}" >&2; exit 2; }
done
(($#)) || set -- "${parts[@]}"

mkdir -p "$state"
for part in "$@"; do
    if [[ -e $state/$part && $(cut -d' ' -f1 "$state/$part") == passed ]]; then
        echo "test-all: $part already passed on this tree"
        continue
    fi
    echo "test-all: running $part; log in $state/$part.log"
    start=$SECONDS result=passed
    run_part "$part" >"$state/$part.log" 2>&1 || result=failed
    printf '%s %d %s\n' "$result" $((SECONDS - start)) "$(date -u +%Y-%m-%dT%H:%M:%SZ)" >"$state/$part"
    echo "test-all: $part $result after $((SECONDS - start)) s"
    # A part that edits the tree would make its own result, and those of all others, wrong.
    [[ $(tree_hash) == "$tree" ]] || { echo "test-all: $part changed files of the tree; see git status" >&2; exit 1; }
done
table
