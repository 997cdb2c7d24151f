# Every target does its own set-up (scripts/setup.sh says what it changes) and may be run again at no cost.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

BEELINE_CACHE ?= $(HOME)/.cache/beeline
export BEELINE_CACHE
# cargo's and root's programs, also where a CI runner has a short PATH; our own cached tools first.
export PATH := $(BEELINE_CACHE)/bin:$(PATH):$(HOME)/.cargo/bin:/usr/sbin:/sbin

FUZZ_TARGET ?= convert
FUZZ_SECONDS ?= 60

.PHONY: help setup build other-layout release demo test-quick test test-all check bench bench-cluster bench-outside bench-candidates fuzz \
	test-kernels test-outside test-edge test-vm test-chart test-rights release-arm64 image deb test-deb cluster cluster-down test-cluster \
	conformance clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## packages and mounts for building, testing and the demo
	@scripts/setup.sh build test

build: ## both halves, debug
	@scripts/setup.sh build
	cargo build --workspace

demo: ## the main job on an embedded example: backends, agent, dials, one table; under a minute once built
	@scripts/setup.sh build run
	cargo build --workspace
	target/debug/demo

test-quick: ## every test that needs no cluster, on the real kernel; root, a few minutes once built
	@scripts/setup.sh build test
	$(MAKE) other-layout
	cargo build --workspace
	@scripts/cargo-test.sh host

# Cargo's compiling and tests first, Go's compiling (10 minutes, the first time) after them: neither needs the other, and
# two cores are busy with one. A failure of the first does not keep the rest from running.
test: ## all tests: on the real kernel, in a real Kubernetes of three nodes, from hosts outside it; builds Kubernetes the first time
	@scripts/setup.sh build test cluster outside
	$(MAKE) other-layout
	cargo build --workspace
	@scripts/cargo-test.sh host server cluster stand

test-all: ## test, check, release builds, conformance, other kernels, fuzzing, bench: the long way round
	BEELINE_LONG=1 $(MAKE) test
	$(MAKE) check
	$(MAKE) release
	$(MAKE) release-arm64
	$(MAKE) image
	$(MAKE) test-chart
	$(MAKE) test-rights
	$(MAKE) test-deb
	$(MAKE) conformance
	$(MAKE) test-kernels
	$(MAKE) test-outside
	$(MAKE) test-edge
	$(MAKE) test-vm
	$(MAKE) fuzz
	$(MAKE) bench
	$(MAKE) bench-outside
	@echo "test-all: everything passed"

check: ## formatting, lints, licences and sources of dependencies, shell syntax
	@scripts/setup.sh build check
	cargo fmt --all --check
	clang-format-19 --dry-run -Werror $(wildcard bpf/*.[ch] testing/*/bpf/*.[ch])
	cargo clippy --workspace --all-targets -- -D warnings
	cargo clippy --workspace --test cluster --test api_server --test kubeedge --test outside --test guest -- -D warnings
	cargo-deny --log-level error check bans licenses sources
	for script in .ci/run scripts/*.sh deploy/kubectl-beeline deploy/detach-wait; do bash -n "$$script"; done
	busybox sh -n scripts/kernels/init 2>/dev/null || sh -n scripts/kernels/init

bench: ## socket path against direct, nftables and iptables; table, plot, target/bench/socket.json
	@scripts/setup.sh build test
	$(MAKE) release
	target/release/beeline-bench socket

# BENCH are options of `beeline-bench cluster`, such as --quick (two minutes instead of an hour) or --sizes 1000.
bench-cluster: ## a node on a real API server, against kube-proxy in both modes; table, plot, target/bench/cluster.json
	@scripts/setup.sh build test cluster
	$(MAKE) release
	target/release/kit build
	target/release/beeline-bench cluster $(BENCH)

# BENCH are options of `beeline-bench outside`, such as --quick.
bench-outside: ## from a host outside: 40,000 connections to one service, dials per second, against plain nodePorts
	@scripts/setup.sh build test cluster
	$(MAKE) release
	target/release/kit build
	target/release/beeline-bench outside $(BENCH)

bench-candidates: ## the table layouts and socket records that were compared
	@scripts/setup.sh build test
	$(MAKE) release
	target/release/beeline-bench candidates

# Stable Rust has no sanitizers, hence -s none: coverage and panics are what we look for. New inputs stay under target/;
# the corpus in the tree is read, and grows by hand.
fuzz: ## the converter on random input, FUZZ_SECONDS=60
	@scripts/setup.sh build fuzz
	mkdir -p target/fuzz/found target/fuzz/corpus fuzz/corpus/$(FUZZ_TARGET)
	cargo fuzz run -s none --target-dir target/fuzz $(FUZZ_TARGET) target/fuzz/corpus fuzz/corpus/$(FUZZ_TARGET) -- \
		-max_total_time=$(FUZZ_SECONDS) -artifact_prefix=$(CURDIR)/target/fuzz/found/

test-kernels: ## load, attach and dial in Debian's own kernels, under qemu without KVM
	@scripts/setup.sh build kernels
	cargo build --workspace
	scripts/kernels.sh

# CLUSTER are options of `kit up`, such as --nodes 2 or --proxy nftables.
cluster: ## a real Kubernetes of three nodes on this machine, with Beeline on each; says how to use it
	@scripts/setup.sh build cluster
	cargo build -p beeline -p beeline-kit
	target/debug/kit build
	target/debug/kit up $(CLUSTER)

test-cluster: ## the part of test that needs Kubernetes: the API server's tests, and pods on three nodes, rollouts, faults
	@scripts/setup.sh build cluster
	$(MAKE) other-layout
	cargo build --workspace
	@scripts/cargo-test.sh server cluster

test-outside: ## hosts outside a cluster: routed, learned by BGP, default route, none, NAT, macvlan pods, several clusters
	@scripts/setup.sh build outside
	cargo build --workspace
	@scripts/cargo-test.sh outside

test-edge: ## KubeEdge's own cloudcore and edgecore, and the agent on an edge node: cut off, restarted, back
	@scripts/setup.sh build test cluster
	cargo build --workspace
	@scripts/cargo-test.sh edge

test-vm: ## a Debian guest under qemu without KVM: joins by the package, serves offline; and one behind passt on a node
	@scripts/setup.sh build guest deb
	cargo build --workspace
	BEELINE_DEB=$$(realpath "$$(scripts/deb.sh target/debug/beeline)") scripts/cargo-test.sh guest

# PROXY=nftables runs the same specs with upstream's kube-proxy instead of Beeline, for comparison.
conformance: ## upstream's own Services specs against the cluster, with Beeline and no kube-proxy; builds them the first time
	@scripts/setup.sh build cluster
	cargo build --workspace
	target/debug/kit build --e2e
	target/debug/kit down
	target/debug/kit up $(if $(PROXY),--no-beeline --proxy $(PROXY))
	status=0; target/debug/kit e2e services '\[sig-network\] Services' \
		'\[Disruptive\]|\[Serial\]|SCTP|affinity timeout' 8 || status=$$?; target/debug/kit down; exit $$status

cluster-down: ## end it, and leave nothing behind
	cargo build -p beeline-kit
	target/debug/kit down

test-chart: ## the chart lints and renders, and deploy/manifests is what it renders; builds Helm once
	scripts/chart.sh check

test-rights: ## the agent with exactly the manifest's capabilities, and without each of them
	@scripts/setup.sh build test
	cargo build -p beeline
	scripts/rights.sh

release-arm64: ## the release binary for arm64, cross-compiled
	scripts/cross-arm64.sh

# DEB_BINARY packs another binary than the release build, which is then not made.
deb: ## a Debian package for hosts outside of a cluster: binary, unit, man pages, completions; into target/deb
	@scripts/setup.sh build deb
	$(if $(DEB_BINARY),,$(MAKE) release)
	scripts/deb.sh $(DEB_BINARY)

test-deb: ## the package installs, upgrades and purges in a root of its own, and systemd takes its unit
	@scripts/setup.sh build deb
	cargo build --workspace
	scripts/deb-check.sh target/debug/beeline

image: ## the container image from deploy/Dockerfile by buildah, tried, at target/image/beeline.tar; pulls nothing
	@scripts/setup.sh build image
	$(MAKE) release
	scripts/image.sh

clean: ## remove target/; the cache of tools and kernels stays
	cargo clean
	@echo "clean: $(BEELINE_CACHE) is kept; it holds tools and kernels, and may be removed by hand"

release:
	cargo build --workspace --release

# The upgrade tests need a second program whose map keys and values differ in size. Features are chosen for the whole
# workspace, so that dependencies are built once for both.
other-layout:
	cargo build --workspace --bin beeline --features beeline/other-layout
	mkdir -p target/other-layout
	cp target/debug/beeline target/other-layout/beeline
