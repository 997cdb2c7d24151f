#!/usr/bin/env bash
# Runs the tests in parts and prints one summary line for all parts, so that no skipped test goes unnoticed.
#
#   scripts/cargo-test.sh PART...
#
#   host           all tests that need no cluster, on the running kernel
#   server         agent and controller against a real etcd and kube-apiserver, and kube-proxy against the packet tests
#   cluster        in a real three-node Kubernetes, which this script starts and removes
#   outside-basic  from hosts outside such a cluster with kube-proxy: routed, macvlan, edge, invalid claims
#   outside        all tests from hosts outside: also by node, changing routes, three clusters under faults
#   edge           on a KubeEdge edge node
#   guest          with virtual machines beside such a cluster
#
# A failing part does not stop the next one. A part that runs no test counts as failed.
set -euo pipefail
cd "$(dirname "$0")/.."

kit=${BEELINE_KIT:-target/debug/kit}
log=${BEELINE_TEST_LOG:-target/test.log}
mkdir -p "$(dirname "$log")"

# Every part uses --workspace, because another selection of packages enables other features and rebuilds dependencies.
host() { cargo test --workspace --no-fail-fast; }

server() {
    "$kit" build --helm &&
        cargo test --workspace --no-fail-fast --test api_server --test packet_kube_proxy -- --test-threads=1
}

cluster() { in_cluster cluster ""; }

outside_basic() { in_cluster outside "--skip host_routes:: --skip three_clusters:: --skip route_changes:: --skip node_ports::" --proxy nftables; }

outside() { in_cluster outside "" --proxy nftables; }

edge() { "$kit" build --edge && cargo test --workspace --test kubeedge -- --nocapture --test-threads=1; }

guest() { scripts/guest.sh && in_cluster guest ""; }

# Removes the cluster also after a failure; its logs stay in the cache.
in_cluster() {
    local name=$1 skip=$2 code=0
    shift 2
    "$kit" build --helm && "$kit" down || return
    { "$kit" up "$@" && cargo test --workspace --test "$name" -- --nocapture --test-threads=1 $skip; } || code=$?
    "$kit" down || code=$?
    return "$code"
}

(($#)) || set -- host server cluster
status=0
: >"$log"
for part in "$@"; do
    [[ " host server cluster outside-basic outside edge guest " == *" $part "* ]] || {
        echo "test: unknown part '$part'; the parts are host, server, cluster, outside-basic, outside, edge and guest" >&2
        exit 2
    }
    echo "== part $part" | tee -a "$log"
    "${part//-/_}" 2>&1 | tee -a "$log" || {
        status=$?
        echo "== failed $part" >>"$log"
    }
done

# A part without any test result counts as failed, whatever its exit code.
awk -v seconds="$SECONDS" -v kernel="$(uname -r)" '
    /^== part / { part = $3; parts[++count] = part }
    /^== failed / { broken[$3] = 1 }
    match($0, /^test result: .* [0-9]+ passed; [0-9]+ failed; [0-9]+ ignored/) {
        for (i = 2; i <= NF; i++) {
            if ($i ~ /^passed/) { passed += $(i - 1); ran[part] += $(i - 1) }
            if ($i ~ /^failed/) { failed += $(i - 1); ran[part] += $(i - 1) }
            if ($i ~ /^ignored/) ignored += $(i - 1)
        }
    }
    /^test .* \.\.\. ignored/ { names = names "\n    not run: " $2 }
    END {
        for (i = 1; i <= count; i++) {
            part = parts[i]
            sums = sums (i > 1 ? ", " : "") part " " ran[part] + 0
            if (!ran[part]) names = names "\n    not run: part " part
            else if (broken[part]) names = names "\n    failed: part " part
            bad += broken[part] || !ran[part]
        }
        printf "test: %s: %d passed, %d failed, %d ignored (%s) in %d s on kernel %s%s\n",
            bad ? "FAILED" : "passed", passed, failed, ignored, sums, seconds, kernel, names
        exit bad ? 1 : 0
    }' "$log" || ((status)) || status=1
exit "$status"
