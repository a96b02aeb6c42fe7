#!/usr/bin/env bash
# scripts/fuzz.sh SECONDS TARGET...
#
# Fuzzes each target of fuzz/ for so long with libFuzzer and AddressSanitizer, from the seeds in fuzz/corpus. Inputs
# that reach something new are added there (git ignores them); one that fails is kept in fuzz/artifacts/TARGET, and
#
#   cargo fuzz run TARGET fuzz/artifacts/TARGET/crash-…
#
# replays it, with RUSTC_BOOTSTRAP=1 where the toolchain is a stable one.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=$1
shift
if ! cargo fuzz --version >/dev/null 2>&1; then
  echo 'fuzz: cargo-fuzz is missing: installing it'
  cargo install --locked --quiet cargo-fuzz
fi
# Coverage and sanitizers are options that a stable compiler has, too, once it is told so.
export RUSTC_BOOTSTRAP=1
unset CARGO_TARGET_DIR
cargo fuzz build
for target in "$@"; do
  words=()
  case $target in args | scripts) words=(-dict=fuzz/args.dict) ;; esac
  # Lua frees what it likes when it likes: after every input that looks like a leak, and takes its time to refute.
  if [ "$target" = scripts ]; then words+=(-detect_leaks=0); fi
  echo "--- $target, $seconds s"
  mkdir -p "fuzz/corpus/$target"
  log=$(mktemp)
  if ! cargo fuzz run "$target" -- -max_total_time="$seconds" -max_len=512 -print_final_stats=1 \
    ${words[@]+"${words[@]}"} >"$log" 2>&1; then
    tail -n 60 "$log"
    exit 1
  fi
  grep -E '^(stat::number_of_executed_units|Done)' "$log"
  rm -f "$log"
done
