# Kennel: the commands of a working day. `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# Where cargo builds, and where the tools live that only checks need. Nothing is installed outside of it but Debian
# packages (by .ci/tools, where they are missing).
export CARGO_TARGET_DIR := $(abspath $(or $(CARGO_TARGET_DIR),target))
export KENNEL_TOOLS := $(CARGO_TARGET_DIR)/tools
export PATH := $(KENNEL_TOOLS)/rust/bin:$(PATH)
BUF := $(KENNEL_TOOLS)/buf/node_modules/.bin/buf
CARGO := cargo --locked
# Compiles what tests run, and lints it on the way: one build for both. __CLIPPY_HACKERY__ is clippy's own separator.
LINTED := RUSTC_WORKSPACE_WRAPPER=clippy-driver CLIPPY_ARGS=-Dwarnings__CLIPPY_HACKERY__ $(CARGO)

ifeq ($(firstword $(MAKECMDGOALS)),ring)
# The words after `ring` are names of rings, and no targets.
RINGS := $(wordlist 2,$(words $(MAKECMDGOALS)),$(MAKECMDGOALS))
.PHONY: ring $(RINGS)
$(RINGS): ring
ring: ## run slow rings by name, as in `make ring clients site`, and record that they passed; without a name: list them
	@.ci/ring $(if $(RINGS),run $(RINGS),list)
else

.PHONY: help build serve quick test test-all binaries versions nextest check lint form fmt proto proto-image record mutants bench growth profile soak conformance packages packages-check vm site tools

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

build: ## build the binary
	$(CARGO) build -p kennel

serve: ## start a server on embedded SQLite, data under target/serve
	$(CARGO) run -p kennel -- serve --data-dir "$(CARGO_TARGET_DIR)/serve"

quick: ## the core alone, without root, services or tools, but for full disks, which take a process each: lifecycle, journal, store on SQLite, supervisor on a fake kernel
	$(CARGO) test --quiet -p kennel-lifecycle -p kennel-journal -p kennel-store -p kennel-supervisor --lib --test lifecycle --test journal --test sqlite --test runs -- --skip full_disk

test: tools form ## everything that a change of the product's own code can break; ends with the test runner's summary
	$(MAKE) --no-print-directory nextest FILTER="$$(.ci/ring filter)"

test-all: test ## make test, then every slow ring: clients, manifests, programs, site, virtual machines, matrix, two versions, soak's short forms
	.ci/ring run all

# Builds and lints what tests run. The runner gets its binaries by a list, so that nothing waits for cargo's lock.
binaries:
	$(LINTED) build --workspace --bins
	$(CARGO) metadata --format-version 1 >"$(CARGO_TARGET_DIR)/packages.json"
	$(LINTED) nextest list --workspace --list-type binaries-only --message-format json >"$(CARGO_TARGET_DIR)/tests.json"

# The former and the next version, for tests/upgrade: after the binaries, whose dependencies they share.
versions: binaries
	.ci/versions

# Runs the tests that FILTER selects.
nextest: binaries
	cargo nextest run --cargo-metadata "$(CARGO_TARGET_DIR)/packages.json" --binaries-metadata "$(CARGO_TARGET_DIR)/tests.json" \
		--test-threads $$((2 * $$(nproc))) -E '$(FILTER)'

check: ## what a change to one crate needs: types and lints, no tests
	$(CARGO) clippy --workspace --all-targets -- -D warnings

lint: form check ## form, licences, types and lints

form: tools
	cargo fmt --all -- --check
	.ci/mutants --places
	cargo fetch --locked --quiet
	cargo deny --offline --locked check bans licenses sources
	if GIT_TERMINAL_PROMPT=0 timeout 30 cargo deny --log-level off fetch db >/dev/null 2>&1; then \
		cargo deny --offline --locked check advisories; \
	else \
		echo "advisories were not checked: RustSec's database cannot be reached"; \
	fi

fmt: ## format Rust and proto
	cargo fmt --all
	if [ -x "$(BUF)" ]; then "$(BUF)" format -w proto; fi

proto: ## lint the contract and compare it with the committed image
	.ci/tools buf
	$(BUF) lint
	$(BUF) format --diff --exit-code proto
	$(BUF) breaking --against proto/kennel.v1.binpb

proto-image: ## accept the present contract as the one that must not break
	.ci/tools buf
	$(BUF) build -o proto/kennel.v1.binpb

record: ## write databases, messages and data directory of tests/recorded/next anew, after a change of a form; as root
	UPDATE=1 $(CARGO) test --quiet -p kennel-store --test sqlite --test postgres recorded_
	UPDATE=1 $(CARGO) test --quiet -p kennel-keeper --lib wire_formats
	$(CARGO) build --workspace --bins
	UPDATE=1 $(CARGO) test --quiet -p kennel-tests --test e2e recorded_data

mutants: ## put 60 faults into the product, one after the other, and list which tests notice: an hour or two
	.ci/mutants

bench: ## measure beside the floors, and say which targets are not reached
	.ci/tools tests bench
	$(CARGO) build --release --workspace --bins
	$(CARGO) run --release -p kennel-tests --bin bench

growth: ## what calls cost beside a million stored and 3,000 live runs: tables and plots, printed, and left in target/growth*
	$(CARGO) build --release --workspace --bins
	"$(CARGO_TARGET_DIR)/release/bench" growth

profile: ## one run, hop by hop: times, system calls, page faults, switches; printed, and left in target/profile.txt
	.ci/tools profile
	$(CARGO) build --release --workspace --bins
	"$(CARGO_TARGET_DIR)/release/bench" profile

conformance: tools ## play the cases of clients/conformance with faults against each client package: an hour at most
	.ci/tools clients
	$(MAKE) --no-print-directory binaries
	cargo nextest run --cargo-metadata "$(CARGO_TARGET_DIR)/packages.json" --binaries-metadata "$(CARGO_TARGET_DIR)/tests.json" \
		--run-ignored only --test-threads 1 -E 'binary(clients)'

packages: ## the static binary, alone, for npm, pip and as an image, and the client packages, into target/packages with SHA256SUMS: some minutes
	.ci/tools packages
	deploy/packages/make

packages-check: ## try target/packages as a user does: installs into empty projects, quick starts of the pages, the image in a container; as root
	.ci/tools packages-check
	deploy/packages/check

soak: ## what takes too long for every change: 100,000 runs under faults, as many where process ids come round, 10,000 simulated lives, an empty database after 10,000 runs, twenty upgrades, a long input, 2,000 runs on five nodes of a Postgres under faults beside a witness, a million wrong encodings for each decoder, thirty million lines under a hundred and fifty deaths, every rule and probe over twenty, a store that is stopped for a minute
	$(CARGO) build --release --workspace --bins
	$(CARGO) nextest run --release -p kennel-tests -p kennel-supervisor --test chaos --test e2e --test runs --run-ignored only --no-capture
	KENNEL_MUTATIONS=1000000 $(CARGO) test --release -p kennel-keeper -p kennel-lifecycle -p kennel-store -p kennel-edge -- corrupt_bytes

vm: ## the virtual machines, the long ones too: limits of runs, no memory left, escaping programs, loss of power, on Debian's kernel; a booted systemd
	.ci/tools tests vm images
	$(LINTED) build --workspace --bins
	$(LINTED) nextest run -p kennel-tests --test vm --run-ignored all --no-capture

site: ## build the documentation into target/site/book, and check its links; with chromium also tables and colours
	.ci/tools mdbook
	$(CARGO) build -p kennel -p kennel-site
	"$(CARGO_TARGET_DIR)/debug/site" "$(CARGO_TARGET_DIR)/site"

tools: ## install what make test needs, where it is missing
	.ci/tools
endif
