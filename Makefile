# Every target installs what it needs (scripts/setup.sh prints what it changes) and can be run again.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

BEELINE_CACHE ?= $(HOME)/.cache/beeline
export BEELINE_CACHE
# A CI runner may have a short PATH: add the cached tools first, then those of cargo and root.
export PATH := $(BEELINE_CACHE)/bin:$(PATH):$(HOME)/.cargo/bin:/usr/sbin:/sbin

# Fuzz targets, separated by spaces; empty: all.
FUZZ_TARGET ?=
FUZZ_SECONDS ?= 60
# Where the plots of the README are written.
BENCH_IMAGES ?= docs/images

.PHONY: help setup build other-layout node-binary release demo test-quick test test-all test-all-status check bench bench-cluster bench-outside bench-candidates fuzz \
	test-kernels test-outside test-edge test-vm test-chart test-rights release-arm64 image deb test-deb cluster cluster-down test-cluster \
	conformance clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install packages and mount file systems for building, testing and the demo
	@scripts/setup.sh build test

build: ## build everything (debug)
	@scripts/setup.sh build
	cargo build --workspace

# `--workspace --bin` builds only these programs, with the features of the whole workspace: dependencies are compiled once
# for all targets.
demo: ## show every kind of Service address in use, on an example in network namespaces; under a minute once built
	@scripts/setup.sh build run
	@echo "demo: building beeline and the demo (the first time this takes some minutes)"
	cargo build --workspace --bin beeline --bin demo
	target/debug/demo

test-quick: ## run all tests that need no cluster; needs root; a few minutes once built
	@scripts/setup.sh build test
	$(MAKE) other-layout
	cargo build --workspace
	@scripts/cargo-test.sh host

# Cargo builds and tests first; Go builds Kubernetes afterwards (10 minutes, the first time).
test: ## run the tests on the real kernel, in a three-node Kubernetes and from hosts outside; builds Kubernetes the first time
	@scripts/setup.sh build test cluster outside
	$(MAKE) other-layout
	cargo build --workspace
	@scripts/cargo-test.sh host server cluster outside-basic

# PARTS limits the run to some parts. The state is kept outside the tree: see scripts/test-all.sh.
test-all: ## run every test part that has not passed on this tree yet; resumable; ends with a table
	@scripts/test-all.sh $(PARTS)

test-all-status: ## print the table of test-all without running anything
	@scripts/test-all.sh --status

check: ## check formatting, lints, naming rules, licences of dependencies, shell syntax
	@scripts/setup.sh build check
	cargo fmt --all --check
	clang-format-19 --dry-run -Werror $(wildcard bpf/*.[ch] testing/*/bpf/*.[ch])
	cargo clippy --workspace --all-targets -- -D warnings
	cargo clippy --workspace --test cluster --test api_server --test kubeedge --test outside --test guest --test packet --test packet_kube_proxy -- -D warnings
	cargo clippy --workspace --bin beeline --no-default-features -- -D warnings
	cargo test --workspace --test naming
	cargo-deny --log-level error check bans licenses sources
	scripts/advisories.sh
	apparmor_parser --skip-kernel-load --skip-cache deploy/profiles/apparmor
	for script in .ci/run scripts/*.sh scripts/kernels/*.sh deploy/kubectl-beeline deploy/detach-wait; do bash -n "$$script"; done
	busybox sh -n scripts/kernels/init 2>/dev/null || sh -n scripts/kernels/init

bench: ## measure the socket path against direct, nftables and iptables; table, plot, JSON
	@scripts/setup.sh build test
	$(MAKE) release
	target/release/beeline-bench socket
	target/release/beeline-bench plot --images $(BENCH_IMAGES)

# BENCH: options of `beeline-bench cluster`, such as --quick (two minutes instead of an hour) or --sizes 1000.
bench-cluster: ## measure a node on a real API server against kube-proxy in both modes; table, plot, JSON
	@scripts/setup.sh build test cluster
	$(MAKE) release
	target/release/kit build
	target/release/beeline-bench cluster $(BENCH)
	target/release/beeline-bench plot --images $(BENCH_IMAGES)

# BENCH: options of `beeline-bench outside`, such as --quick.
bench-outside: ## measure a host outside: 40,000 connections, dials per second, against plain nodePorts
	@scripts/setup.sh build test cluster
	$(MAKE) release
	target/release/kit build
	target/release/beeline-bench outside $(BENCH)

bench-candidates: ## compare table layouts and socket records
	@scripts/setup.sh build test
	$(MAKE) release
	target/release/beeline-bench candidates

fuzz: ## fuzz every parser of foreign input for FUZZ_SECONDS=60 each, and print the number of inputs
	@scripts/setup.sh build fuzz
	FUZZ_SECONDS=$(FUZZ_SECONDS) scripts/fuzz.sh $(FUZZ_TARGET)

test-kernels: ## load, attach, dial and churn in Debian's amd64 and arm64 kernels, under qemu without KVM
	@scripts/setup.sh build kernels
	cargo build --workspace
	scripts/cross-arm64.sh --kernel-check
	scripts/kernels.sh

# CLUSTER: options of `kit up`, such as --nodes 2, --proxy nftables or --chart.
cluster: ## start a Kubernetes cluster of three nodes on this machine with Beeline on each; prints commands to try
	@scripts/setup.sh build cluster
	cargo build --workspace --bin beeline --bin kit
	target/debug/kit build $(if $(findstring --chart,$(CLUSTER)),--helm)
	target/debug/kit up $(CLUSTER)

test-cluster: ## run the parts of test that need Kubernetes: API server tests, three-node cluster
	@scripts/setup.sh build cluster
	$(MAKE) other-layout
	cargo build --workspace
	@scripts/cargo-test.sh server cluster

test-outside: ## run the tests from hosts outside: routed, BGP, default route, no route, NAT, macvlan, several clusters
	@scripts/setup.sh build outside
	cargo build --workspace
	@scripts/cargo-test.sh outside

test-edge: ## run the tests with KubeEdge's cloudcore and edgecore and the agent on an edge node
	@scripts/setup.sh build test cluster
	cargo build --workspace
	@scripts/cargo-test.sh edge

test-vm: ## run the tests with a Debian guest under qemu: joins by the package, offline reboot, passt
	@scripts/setup.sh build guest deb
	cargo build --workspace
	BEELINE_DEB=$$(realpath "$$(scripts/deb.sh target/debug/beeline)") scripts/cargo-test.sh guest

# PROXY=nftables runs the same specs with upstream's kube-proxy instead of Beeline, for comparison.
conformance: ## run upstream's Services specs with Beeline and without kube-proxy; builds them the first time
	@scripts/setup.sh build cluster
	cargo build --workspace
	target/debug/kit build --e2e
	target/debug/kit down
	target/debug/kit up $(if $(PROXY),--no-beeline --proxy $(PROXY))
	status=0; target/debug/kit e2e services '\[sig-network\] Services' \
		'\[Disruptive\]|\[Serial\]|SCTP|affinity timeout' 8 || status=$$?; target/debug/kit down; exit $$status

cluster-down: ## stop and remove that cluster
	@test -x target/debug/kit || cargo build --workspace --bin kit
	target/debug/kit down

test-chart: ## lint and render the chart and compare deploy/manifests with it; builds Helm once
	scripts/chart.sh check

test-rights: ## check that the agent needs exactly the manifest's capabilities
	@scripts/setup.sh build test
	cargo build --workspace --bin beeline
	scripts/rights.sh

release-arm64: ## cross-compile the release binary for arm64
	scripts/cross-arm64.sh

# DEB_BINARY packs this binary instead of the release build.
deb: ## build the Debian package for hosts outside a cluster, in target/deb
	@scripts/setup.sh build deb
	$(if $(DEB_BINARY),,$(MAKE) release)
	scripts/deb.sh $(DEB_BINARY)

test-deb: ## install, upgrade and purge the package in a private root, and check its unit
	@scripts/setup.sh build deb
	cargo build --workspace
	scripts/deb-check.sh target/debug/beeline

# IMAGE names the image, PUSH=1 pushes it to its registry (log in with `buildah login` first), SIGN_KEY signs the files with
# this minisign key.
image: ## build the container image and its SBOM in target/image with buildah; pulls nothing
	@scripts/setup.sh build image
	$(MAKE) node-binary
	IMAGE='$(IMAGE)' PUSH='$(PUSH)' SIGN_KEY='$(SIGN_KEY)' scripts/image.sh

clean: ## remove target/; the cache of tools and kernels stays
	cargo clean
	@echo "clean: $(BEELINE_CACHE) is kept; it holds tools, kernels and Kubernetes binaries, and can be removed by hand"

release:
	cargo build --workspace --release

# The binary of the nodes' image, without the feature `outside`. Built with --workspace, so that it shares the compiled
# dependencies with `make release`.
node-binary:
	cargo build --workspace --release --bin beeline --no-default-features
	mkdir -p target/node
	cp target/release/beeline target/node/beeline

# The upgrade tests need a second binary whose map keys and values have other sizes. Built with --workspace, so that both
# binaries share the compiled dependencies.
other-layout:
	cargo build --workspace --bin beeline --features beeline/other-layout
	mkdir -p target/other-layout
	cp target/debug/beeline target/other-layout/beeline
