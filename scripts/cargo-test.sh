#!/usr/bin/env bash
# The tests, part by part, and one closing line with the sums of all parts, so that no test is skipped unseen.
#
#   scripts/cargo-test.sh PART...
#
#   host      everything that needs no cluster, on the running kernel
#   server    the agent and its source against etcd and kube-apiserver, which the kit builds
#   cluster   in a real Kubernetes of three nodes, which is started and ended here
#   stand     from hosts outside such a cluster, which has kube-proxy on its nodes: routed, macvlan, at the edge, bad claims
#   outside   the same, by node, routes that come and go, the ground of it, three clusters with the same ranges under faults
#   edge      on an edge node of KubeEdge, whose programs the kit builds, with an API server in the cloud
#   guest     with virtual machines beside such a cluster
#
# A part that fails does not keep the next from running; one that could not run at all is a failure with its name.
set -euo pipefail
cd "$(dirname "$0")/.."

kit=${BEELINE_KIT:-target/debug/kit}
log=${BEELINE_TEST_LOG:-target/test.log}
mkdir -p "$(dirname "$log")"

# Feature choices are the workspace's in every part, or the dependencies would be built twice.
host() { cargo test --workspace --no-fail-fast; }

server() { "$kit" build --helm && cargo test --workspace --test api_server -- --test-threads=1; }

cluster() { in_cluster cluster ""; }

stand() { in_cluster outside "--skip ground:: --skip several:: --skip flap:: --skip node::" --proxy nftables; }

outside() { in_cluster outside "" --proxy nftables; }

edge() { "$kit" build --edge && cargo test --workspace --test kubeedge -- --nocapture --test-threads=1; }

guest() { scripts/guest.sh && in_cluster guest ""; }

# Ends the cluster also after a failure; its logs stay in the cache.
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
    [[ " host server cluster stand outside edge guest " == *" $part "* ]] || {
        echo "test: there is no part '$part': host, server, cluster, stand, outside, edge or guest" >&2
        exit 2
    }
    echo "== part $part" | tee -a "$log"
    "$part" 2>&1 | tee -a "$log" || {
        status=$?
        echo "== failed $part" >>"$log"
    }
done

# A part without one result is no success, whatever its programs said.
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
