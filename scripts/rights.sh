#!/usr/bin/env bash
# Checks that the agent needs exactly the capabilities of deploy/manifests/beeline.yaml: scripts/rights.sh [CAPABILITY...]
#
# Runs the agent like the chart's container (root, own pid namespace, slave mounts, no new privileges). All listed
# capabilities together must be enough, also under deploy/profiles/seccomp.json, and without each one a stage must fail. With
# arguments: one run with only these capabilities.
#
# Stages: start and self-test; SYS_ADMIN is in the namespace helper only; a connected UDP socket of another user in a network
# namespace, whose backend is removed; a second start that adopts the tables; cleanup without any capability. All names are
# private and are removed.
set -euo pipefail
cd "$(dirname "$0")/.."

beeline=${BEELINE:-target/debug/beeline}
manifest=deploy/manifests/beeline.yaml
seccomp=deploy/profiles/seccomp.json
die() {
    echo "rights: $1" >&2
    echo "    next: $2" >&2
    exit 1
}
[[ $EUID == 0 ]] || die "this script needs root" "sudo scripts/rights.sh"
[[ -x $beeline ]] || die "$beeline is missing" "make build, or BEELINE=/path/to/beeline"
cgroups=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/mounts)
[[ $cgroups ]] || die "cgroup2 is not mounted" "scripts/setup.sh run"

name=rights-$$
group=$cgroups/$name pins=/sys/fs/bpf/$name dir=$(mktemp -d)
agent='' client='' capabilities='' filter=''

# --- environment ----------------------------------------------------------------------------------------------

tear_down() {
    [[ -z $client ]] || kill "$client" 2>/dev/null || true
    stop_agent
    "$beeline" cleanup --pin-dir "$pins" >/dev/null 2>&1 || true
    ip netns del "$name" 2>/dev/null || true
    for _ in {1..50}; do
        rmdir "$group"/*/ "$group" 2>/dev/null || true
        [[ -d $group ]] || break
        sleep 0.1
    done
    rm -rf "$dir"
}
trap tear_down EXIT

# Writes one UDP Service whose only backend is the argument.
objects() {
    cat >"$dir/aside" <<Y
{apiVersion: v1, kind: Service, metadata: {name: dns, namespace: default}, spec: {clusterIP: 10.96.9.53,
 ports: [{name: d, port: 53, protocol: UDP}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4, ports: [{name: d, port: 5353, protocol: UDP}],
 metadata: {name: dns-1, namespace: default, labels: {kubernetes.io/service-name: dns}}, endpoints: [{addresses: [$1]}]}
Y
    mv "$dir/aside" "$dir/manifests/objects.yaml"
}

set_up() {
    mkdir -p "$group/pod" "$dir/manifests"
    ip netns add "$name"
    ip -n "$name" link set lo up
    ip -n "$name" address add 10.244.9.1/32 dev lo
}

# --- the agent, started like a container ------------------------------------------------------------------------

limited() {
    local bounds=-all word
    for word in $capabilities; do bounds+=,+$word; done
    # Split into words: a program that sets the seccomp filter, and its profile.
    # shellcheck disable=SC2086
    setpriv --bounding-set="$bounds" --inh-caps=-all --no-new-privs $filter "$@"
}

# unshare does not forward signals; --kill-child ends the agent together with unshare.
start_agent() {
    export -f limited
    export capabilities filter
    : >"$dir/log" # The loop below reads the log before the agent has written to it.
    unshare --mount --propagation slave --pid --fork --kill-child --mount-proc bash -c 'limited "$@"' limited "$beeline" agent \
        --manifests "$dir/manifests" --node-name node-1 --cgroup "$group" --pin-dir "$pins" --socket "$dir/socket" \
        --metrics-bind-address off --healthz-bind-address off >"$dir/log" 2>&1 &
    agent=$!
    for _ in {1..100}; do
        ! grep -q ' serving ' "$dir/log" || return 0
        kill -0 "$agent" 2>/dev/null || break
        sleep 0.1
    done
    return 1
}

stop_agent() {
    [[ $agent ]] || return 0
    kill -KILL "$agent" 2>/dev/null || true
    wait "$agent" 2>/dev/null || true
    agent=''
    for _ in {1..50}; do
        "$beeline" status --pin-dir "$pins" --socket "$dir/socket" 2>/dev/null | grep -q '^agent  *beeline' || return 0
        sleep 0.1
    done
}

status() { "$beeline" status --pin-dir "$pins" --socket "$dir/socket" -o json | tr -d ' \n' | grep -o "\"$1\":[^,}]*" | cut -d: -f2; }

# Prints an error unless every thread of the agent has given up SYS_ADMIN, and its helper has SYS_ADMIN and NET_ADMIN only.
check_helper() {
    local main helper thread set
    [[ " $capabilities " == *' sys_admin '* ]] || return 0
    # --pin-dir is on the command line of unshare and bash, too; the agent itself runs $beeline.
    for main in $(pgrep -f -- "--pin-dir $pins"); do
        [[ /proc/$main/exe -ef $beeline ]] && break
    done
    [[ /proc/$main/exe -ef $beeline ]] || { echo 'the process of the agent was not found'; return; }
    for thread in /proc/"$main"/task/*; do
        for set in Inh Prm Eff Amb; do
            (((0x$(awk "/^Cap$set/ { print \$2 }" "$thread/status") >> 21 & 1) == 0)) ||
                echo "a thread of the agent has SYS_ADMIN (Cap$set)"
        done
    done
    helper=$(cat /proc/"$main"/task/*/children)
    helper=${helper// /}
    [[ $helper ]] || { echo 'the agent has no helper'; return; }
    [[ $(awk '/^Cap(Prm|Eff)/ { print $2 }' "/proc/$helper/status" | sort -u) == 0000000000201000 ]] ||
        echo "the capabilities of the helper are $(grep ^Cap "/proc/$helper/status" | tr -s '\n\t' ' ')"
}

# Starts a process of another user in the cgroup and the namespace, with a connected UDP socket.
dial() {
    (
        echo "$BASHPID" >"$group/pod/cgroup.procs"
        exec ip netns exec "$name" setpriv --reuid=65534 --regid=65534 --clear-groups --bounding-set=-all --inh-caps=-all \
            /usr/bin/python3 -c '
import socket, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect(("10.96.9.53", 53))
print("dialled", flush=True)
time.sleep(60)'
    ) >"$dir/client" 2>&1 &
    client=$!
    for _ in {1..100}; do
        ! grep -q dialled "$dir/client" || return 0
        sleep 0.1
    done
    return 1
}

# --- one run: prints the stage that failed ---------------------------------------------------------------------

stages() {
    local output
    objects 10.244.9.1
    start_agent || { echo "start: $(tail -n 1 "$dir/log")"; return; }
    [[ $(status selfTest) == '"passed"' ]] || { echo "self-test: $(status selfTest)"; return; }
    output=$(check_helper 2>&1)
    [[ -z $output ]] || { echo "helper: $output"; return; }
    dial || { echo "dial: $(cat "$dir/client")"; return; }
    objects 10.244.9.2
    for _ in {1..30}; do
        [[ $(status udpSocketsDestroyed) == 0 ]] || break
        sleep 0.1
    done
    [[ $(status udpSocketsDestroyed) == 1 ]] ||
        { echo "stale UDP socket: $(grep -m 1 -o 'stale UDP.*' "$dir/log" || echo 'not destroyed')"; return; }
    stop_agent
    start_agent || { echo "second start: $(tail -n 1 "$dir/log")"; return; }
    [[ $(status start) == '"adopted"' ]] || { echo "second start: $(status start)"; return; }
    stop_agent
    capabilities='' limited "$beeline" cleanup --pin-dir "$pins" >"$dir/cleanup" 2>&1 || echo "cleanup: $(cat "$dir/cleanup")"
}

run() {
    capabilities=$1
    set_up
    stages >"$dir/output" 2>&1 || true
    local output
    output=$(<"$dir/output")
    stop_agent
    tear_down
    client='' dir=$(mktemp -d)
    echo "$output"
}

if (($#)); then
    output=$(run "${*,,}")
    echo "${*}: ${output:-everything works}"
    exit
fi
# The list items below `add:`.
mapfile -t listed < <(awk '/^ +add:$/ { on = 1; next } on && /^ +- / { print $2; next } on && !/^ +#/ { exit }' "$manifest")
((${#listed[@]})) || die "$manifest lists no capability" "scripts/chart.sh render"
output=$(run "${listed[*],,}")
[[ -z $output ]] || die "with ${listed[*]}: $output" "a capability is missing in deploy/chart/templates/daemonset.yaml"
echo "with ${listed[*]}: everything works"

/usr/bin/python3 -c 'import seccomp' 2>/dev/null || die "python3-seccomp is missing" "scripts/setup.sh test"
filter="scripts/seccomp-run.py $seccomp"
output=$(run "${listed[*],,}")
[[ -z $output ]] || die "under $seccomp: $output" "strace -f the agent, and add the system call to the profile"
! limited true 2>/dev/null || ! limited unshare --mount true 2>/dev/null ||
    die "$seccomp allows new namespaces" "check the rules of clone and unshare"
echo "under $seccomp: everything works"
filter=''

# SYS_ADMIN implies the other capabilities, so they are tested without it.
narrow=()
for one in "${listed[@]}"; do [[ $one == SYS_ADMIN ]] || narrow+=("$one"); done
needed() {
    local without=$1 output
    shift
    output=$(run "${*,,}")
    [[ $output ]] || die "everything works without $without" "remove it from deploy/chart/templates/daemonset.yaml"
    echo "without $without: $output"
}
for one in "${listed[@]}"; do
    if [[ $one == SYS_ADMIN ]]; then
        needed "$one" "${narrow[@]}"
    else
        rest=()
        for other in "${narrow[@]}"; do [[ $other == "$one" ]] || rest+=("$other"); done
        needed "$one (and SYS_ADMIN)" "${rest[@]}"
    fi
done
echo "rights: ${listed[*]} are enough, and each of them is needed"
