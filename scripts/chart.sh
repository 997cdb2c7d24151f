#!/usr/bin/env bash
# The chart and what is rendered from it: scripts/chart.sh render|check|helm
#
#   render   writes deploy/manifests/*.yaml from the chart's defaults
#   check    fails if these files are not what the chart renders, if the chart does not lint, or if a value that must be
#            refused is not
#   helm     builds Helm alone and prints its path
#
# Helm is built by the kit from its pinned Go module into ${BEELINE_CACHE:-~/.cache/beeline}/kit/bin, once.
set -euo pipefail
cd "$(dirname "$0")/.."

cache=${BEELINE_CACHE:-$HOME/.cache/beeline}/kit
helm=$cache/bin/helm
chart=deploy/chart

say() { echo "chart: $*" >&2; }
die() {
    echo "chart: $1" >&2
    echo "    next: ${2:-scripts/chart.sh render, and look at git diff deploy/manifests}" >&2
    exit 1
}

# --- Helm ------------------------------------------------------------------------------------------------------

# The kit builds it where it is not there, or where the pinned version is another one.
helm() {
    scripts/setup.sh build cluster >&2
    cargo build --quiet --workspace --bin kit
    target/debug/kit build --only-helm >&2 || die "Helm does not build" "read $cache/log/build-helm.log"
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
    lacks 'verbs: \[get, patch\]'
    has '^kind: ValidatingWebhookConfiguration$'
    has '^ +- --virtual-ranges=169.254.0.0/17,fd00:bee::/48$' "${all[@]}"
    has '^ +- --controller=none$' --set controller.enabled=false
    lacks 'ValidatingWebhookConfiguration|kind: Deployment' --set controller.enabled=false
    has '^ +- "--report-namespace=network-reports"$' "${all[@]}"
    has '^  name: beeline-report$'
    has '^  name: beeline-reach-backend$' --set controller.enabled=false
    lacks 'kind: Namespace|beeline-report' --set controller.enabled=false
    has '^  name: beeline-startup-taint$' --set clearStartupTaint=true
    lacks 'name: beeline-startup-taint'
    refused reportNamespace --set reportNamespace=kube-system
    refused reportNamespace --set reportNamespace=A
    has '^  name: "123"$' --set-string reportNamespace=123
    refused policyOverlap --set controller.policyOverlap=maybe
    lacks '- SYS_ADMIN|netns' --set enterNamespaces=false
    lacks 'privileged: true' "${all[@]}"
    has '^    helm.sh/resource-policy: keep$'
    lacks 'resource-policy' "${all[@]}"
    lacks 'CustomResourceDefinition' --set crds.install=false
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
