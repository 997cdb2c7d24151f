#!/usr/bin/env bash
# cargo test for the workspace, and one closing line with the sums, so that no test is skipped unseen.
set -euo pipefail
cd "$(dirname "$0")/.."

log=target/test.log
mkdir -p target
status=0
cargo test --workspace --no-fail-fast "$@" 2>&1 | tee "$log" || status=$?

awk -v status="$status" -v seconds="$SECONDS" -v kernel="$(uname -r)" '
    match($0, /^test result: .* [0-9]+ passed; [0-9]+ failed; [0-9]+ ignored/) {
        for (i = 2; i <= NF; i++) {
            if ($i ~ /^passed/) passed += $(i - 1)
            if ($i ~ /^failed/) failed += $(i - 1)
            if ($i ~ /^ignored/) ignored += $(i - 1)
        }
    }
    /^test .* \.\.\. ignored/ { names = names "\n    not run: " $2 }
    END {
        verdict = status == 0 ? "passed" : "FAILED"
        printf "test: %s: %d passed, %d failed, %d ignored in %d s on kernel %s%s\n",
            verdict, passed, failed, ignored, seconds, kernel, names
    }' "$log"
exit "$status"
