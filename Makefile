# Kennel: the commands of a working day. `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# Where cargo builds, and where the tools live that only checks need. Nothing is installed outside of it but Debian
# packages (by .ci/tools, where they are missing).
export CARGO_TARGET_DIR := $(abspath $(or $(CARGO_TARGET_DIR),target))
export KENNEL_TOOLS := $(CARGO_TARGET_DIR)/tools
BUF := $(KENNEL_TOOLS)/buf/node_modules/.bin/buf
CARGO := cargo --locked

.PHONY: help build serve test quick check lint form clippy fmt proto proto-image bench growth profile soak vm site pages tools

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

build: ## build the binary
	$(CARGO) build -p kennel

serve: ## start a server on embedded SQLite, data under target/serve
	$(CARGO) run -p kennel -- serve --data-dir "$(CARGO_TARGET_DIR)/serve"

test: tools form ## everything that must hold before a change lands; ends with the test runner's summary
	$(CARGO) build --workspace --bins
	$(CARGO) metadata --format-version 1 >"$(CARGO_TARGET_DIR)/packages.json"
	$(CARGO) nextest list --workspace --list-type binaries-only --message-format json >"$(CARGO_TARGET_DIR)/tests.json"
	nice -n 19 $(MAKE) --no-print-directory clippy pages >"$(CARGO_TARGET_DIR)/lint.log" 2>&1 & lint=$$!; \
	cargo nextest run --cargo-metadata "$(CARGO_TARGET_DIR)/packages.json" --binaries-metadata "$(CARGO_TARGET_DIR)/tests.json" \
		--test-threads $$((1 + $$(nproc))) && failed=0 || failed=$$?; \
	wait $$lint || { cat "$(CARGO_TARGET_DIR)/lint.log" >&2; exit 1; }; \
	exit $$failed

quick: ## the core alone, without root, services or tools, but for full disks, which take a process each: lifecycle, journal, store on SQLite, supervisor on a fake kernel
	$(CARGO) test --quiet -p kennel-lifecycle -p kennel-journal -p kennel-store -p kennel-supervisor --lib --test lifecycle --test journal --test sqlite --test runs -- --skip full_disk

check: clippy ## what a change to one crate needs: types and lints, no tests

lint: form clippy ## form, lints, the contract, and the licences where cargo-deny is installed

form: tools
	cargo fmt --all -- --check
	$(BUF) lint
	$(BUF) format --diff --exit-code proto
	$(BUF) breaking --against proto/kennel.v1.binpb
	if command -v cargo-deny >/dev/null; then cargo deny --offline --locked check bans licenses sources; else echo "cargo-deny is not installed: licences and bans were not checked"; fi

clippy:
	$(CARGO) clippy --workspace --all-targets -- -D warnings

fmt: ## format Rust and proto
	cargo fmt --all
	if [ -x "$(BUF)" ]; then "$(BUF)" format -w proto; fi

proto: tools ## lint the contract and compare it with the committed image
	$(BUF) lint
	$(BUF) breaking --against proto/kennel.v1.binpb

proto-image: tools ## accept the present contract as the one that must not break
	$(BUF) build -o proto/kennel.v1.binpb

bench: ## measure beside the floors, and say which targets are not reached
	.ci/tools bench
	$(CARGO) build --release --workspace --bins
	$(CARGO) run --release -p kennel-tests --bin bench

growth: ## what calls cost beside a million stored and 3,000 live runs: tables and plots, printed, and left in target/growth*
	$(CARGO) build --release --workspace --bins
	"$(CARGO_TARGET_DIR)/release/bench" growth

profile: ## one run, hop by hop: times, system calls, page faults, switches; printed, and left in target/profile.txt
	.ci/tools profile
	$(CARGO) build --release --workspace --bins
	"$(CARGO_TARGET_DIR)/release/bench" profile

soak: ## what takes too long for every change: 100,000 runs under faults, as many where process ids come round, 10,000 simulated lives, an empty database after 10,000 runs, twenty upgrades, a long input, 2,000 runs on five nodes of a Postgres under faults beside a witness, a million wrong encodings for each decoder, thirty million lines under a hundred and fifty deaths, a store that is stopped for a minute
	$(CARGO) build --release --workspace --bins
	$(CARGO) nextest run --release -p kennel-tests -p kennel-supervisor --test chaos --test runs --run-ignored only --no-capture
	KENNEL_MUTATIONS=1000000 $(CARGO) test --release -p kennel-keeper -p kennel-lifecycle -p kennel-store -p kennel-edge -- wrong_bytes have_these_bytes

vm: ## the virtual machines, the long ones too: limits of runs, no memory left, escaping programs, loss of power, on Debian's kernel; a booted systemd
	.ci/tools vm
	$(CARGO) build --workspace --bins
	$(CARGO) nextest run -p kennel-tests --test vm --run-ignored all --no-capture

site: tools ## build the documentation into target/site/book, and check its links
	$(CARGO) build --workspace --bins
	@$(MAKE) --no-print-directory pages

# Of binaries that are built.
pages:
	"$(CARGO_TARGET_DIR)/debug/site" "$(CARGO_TARGET_DIR)/site"

tools: ## install what the checks need, where it is missing
	.ci/tools
