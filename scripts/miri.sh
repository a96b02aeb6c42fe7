#!/usr/bin/env bash
# scripts/miri.sh [CARGO TEST ARGUMENTS]
#
# Runs the unit tests, which drive the shims on a fake server, and the core beside its model under Miri, the interpreter
# that finds undefined behaviour. Miri is a part of nightly toolchains only: one is installed by rustup where it can be
# had; where it cannot, nothing is run, which is said, and the script ends with 77.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! cargo +nightly miri --version 2>/dev/null &&
  ! { rustup toolchain install nightly --profile minimal --component miri,rust-src && cargo +nightly miri --version; }; then
  echo 'NOT RUN: Miri, since no nightly toolchain can be had here' >&2
  exit 77
fi
export CARGO_TARGET_DIR=target/miri RL_STEPS=${RL_STEPS:-60}
# The random seeds of hash tables and tests come from the system.
export MIRIFLAGS="${MIRIFLAGS:-} -Zmiri-disable-isolation -Zmiri-strict-provenance"
[ $# -gt 0 ] || set -- --lib --test core
cargo +nightly miri test "$@"
