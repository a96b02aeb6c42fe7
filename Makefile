# redis-rl: `make` lists what there is to do.
.DEFAULT_GOAL := help
.PHONY: help setup run build test test-matrix test-containers test-docs test-examples test-package test-monitoring test-arm64 package parity soak soak-hour simulate fuzz hard memcheck asan miri demo bench fmt lint docs clean

PORT ?= 6379
# Of `make parity`, for each algorithm; of 200 calls.
TRACES ?= 5000
# Of `make fuzz`: seconds, and targets.
TIME ?= 60
FUZZ ?= args codec decisions scripts
# Of `make hard`.
HARD_KILLS ?= 200
# Of `make simulate`.
CALLS ?= 100000000
# Of `make soak`: primaries killed, slots moved, links cut, limiters made and most of them deleted.
KILLS ?= 20
MOVES ?= 500
CUTS ?= 12
CHURN ?= 1000000
# Looked up when it is used, since setup may have installed it by then.
REDIS_SERVER ?= $(shell command -v redis-server || command -v valkey-server)
REDIS_CLI = $(patsubst %-server,%-cli,$(notdir $(REDIS_SERVER)))

# redis.conf and the tests look for the module under target/.
unexport CARGO_TARGET_DIR

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo '  PORT=6380 moves `make run`; REDIS_SERVER=/path/to/valkey-server chooses the server.'

setup: ## install what is missing (a server, clang)
	@scripts/setup.sh

build: setup ## build the module, target/release/libredis_rl.so
	cargo build --release

run: port build server ## build, then run a server with the module in the foreground
	@echo
	@echo 'In another terminal, ten per second and key:'
	@echo
	@echo "  $(REDIS_CLI) -p $(PORT) RL.GCRA user:1 10 1000 '*'"
	@echo "  $(REDIS_CLI) -p $(PORT) RL.SLIDINGLOG user:2 10 1000 '*' COST 3"
	@echo "  $(REDIS_CLI) -p $(PORT) RL.INSPECT user:1 '*'"
	@echo
	@echo 'A reply is: allowed, limit, remaining, retry after (ms), reset after (ms). Ctrl-C stops the server.'
	@echo
	@exec "$(REDIS_SERVER)" redis.conf --port $(PORT)

test: build server ## run all tests against the release module and a live server
	REDIS_SERVER="$(REDIS_SERVER)" cargo test

test-matrix: build ## run the tests that need a server on every Redis and Valkey that can be had here
	REDIS_SERVER="$(REDIS_SERVER)" scripts/matrix.sh

test-containers: build ## run the server tests in containers, and compose.yaml; needs Docker, starts an engine where it may
	scripts/docker.sh scripts/containers.sh

test-docs: build server ## run the lines of the docs that take minutes, an hour in all (RL_PAGE=docs/TIME.md: one page); make test runs the others
	REDIS_SERVER="$(REDIS_SERVER)" cargo test --test shell -- --nocapture --ignored

test-examples: build server ## run the example services of examples/ and one scenario against all of them
	REDIS_SERVER="$(REDIS_SERVER)" scripts/examples.sh

test-monitoring: build server ## a real scrape by Prometheus, and every expression of the dashboard
	REDIS_SERVER="$(REDIS_SERVER)" scripts/monitoring.sh

test-arm64: setup ## build the module for arm64 and run the vectors on arm64 servers under qemu; as root, with debootstrap
	scripts/arm64.sh

package: build ## build target/dist: a .deb and a tarball
	scripts/package.sh

test-package: package ## install them on a clean Debian and try them; as root, with debootstrap
	scripts/package.sh test

parity: build server ## scripts beside commands: a million calls for each algorithm
	RL_PARITY_TRACES=$(TRACES) REDIS_SERVER="$(REDIS_SERVER)" cargo test --test parity -- --nocapture --include-ignored

soak: build server ## the long forms: KILLS primaries, MOVES of a slot, CUTS of a link, CHURN of limiters
	RL_KILLS=$(KILLS) RL_MOVES=$(MOVES) RL_CUTS=$(CUTS) REDIS_SERVER="$(REDIS_SERVER)" \
	  cargo test --test failover --test cluster --test netsplit -- --nocapture --test-threads 1
	RL_CHURN=$(CHURN) MATRIX=redis:pypi REDIS_SERVER="$(REDIS_SERVER)" scripts/matrix.sh persistence

fuzz: setup ## fuzz each of FUZZ for TIME seconds, from the seeds in fuzz/corpus
	scripts/fuzz.sh $(TIME) $(FUZZ)

hard: build server ## faults, hostile input and endurance at their full length (hours)
	RL_KILLS=$(HARD_KILLS) RL_CUTS=1000 RL_CLIENTS=10000 REDIS_SERVER="$(REDIS_SERVER)" \
	  cargo test --test faults -- --nocapture --test-threads 1
	RL_FUZZ=1000000 RL_OPTIONS=1000000 RL_HUGE_MB=500 REDIS_SERVER="$(REDIS_SERVER)" \
	  cargo test --test hostile -- --nocapture --test-threads 1
	RL_LENGTH=10000 RL_PATH_CALLS=10000000 REDIS_SERVER="$(REDIS_SERVER)" \
	  cargo test --test endurance -- --nocapture --test-threads 1 --skip a_mixed_load

soak-hour: build server ## an hour of mixed load with persistence and a replica
	RL_SOAK_S=3600 REDIS_SERVER="$(REDIS_SERVER)" cargo test --test endurance -- --nocapture a_mixed_load

memcheck: build ## unit tests, and the server tests with every server, under valgrind's memcheck (about 40 min)
	scripts/memcheck.sh

asan: server ## unit tests, and the server tests with a module, built for AddressSanitizer
	scripts/asan.sh

miri: ## the shims on a fake server, and the core beside its model, under Miri; needs a nightly toolchain (an hour)
	scripts/miri.sh

simulate: ## CALLS simulated calls under all laws, with clocks, networks and servers that fail
	RL_CALLS=$(CALLS) cargo test --release --test simulation -- --nocapture the_laws

demo: build server ## show how the five algorithms treat the same traffic
	REDIS_SERVER="$(REDIS_SERVER)" cargo run --quiet --example demo

# What may be set: benches/server/main.rs. Valgrind is looked for, not asked for: the run says what it skipped.
bench: build server ## measure: decisions, instructions, throughput, memory (about 15 min; GROWTH=1 for more)
	cargo build --release --example floor
	cargo bench --bench decisions -- --quiet
	REDIS_SERVER="$(REDIS_SERVER)" GROWTH="$(GROWTH)" cargo bench --bench server

fmt: ## format the code
	cargo fmt --all

lint: ## what must be clean before a commit
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings

docs: ## build the API documentation; a broken link is an error
	RUSTDOCFLAGS="-D warnings" cargo doc --no-deps

clean: ## remove what was built
	cargo clean

# Told before a build of minutes, not after it. A server that is not Redis is found by the server itself.
.PHONY: port
port: setup
	@! $(REDIS_CLI) -p $(PORT) PING >/dev/null 2>&1 || \
	  { echo 'port $(PORT) is taken by a running server: stop it, or take another, as in `make run PORT=6380`' >&2; exit 1; }

# No server, no tests: a suite that skips them would look green.
.PHONY: server
server: setup
	@test -n "$(REDIS_SERVER)" || { echo 'no redis-server and no valkey-server on PATH; set REDIS_SERVER' >&2; exit 1; }
	@echo "server: $(REDIS_SERVER)"
	@"$(REDIS_SERVER)" --version
