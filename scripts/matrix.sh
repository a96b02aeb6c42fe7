#!/usr/bin/env bash
# scripts/matrix.sh [TEST...]
#
# Runs the tests that start a server on every server that can be had here, with one and the same build, and ends with
# a table. `make test-matrix` builds the module first. TEST names test files (commands, persistence…); all, if none is.
#
#   MATRIX          the servers, as kind:suite of Debian or redis:pypi (scripts/server.sh); default below. The server on
#                   PATH (or $REDIS_SERVER) comes first
#   MATRIX_HERE     tested: the server on PATH was tested by `make test` already, and only has its part in the pairs
#   MATRIX_SKIP     test files that are left out, as a pattern: shell|readme
#   MATRIX_STRICT   1: a server that cannot be had fails the run; else it is listed, and the run goes on
#
# The servers are unpacked under target/servers by scripts/server.sh and kept for the next run; remove that folder to
# get them anew. The whole output of each run is in target/matrix. On another system than Debian, or without a network,
# only the server on PATH is tested, and the table says so.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

MATRIX=${MATRIX:-redis:bookworm redis:trixie redis:sid redis:experimental valkey:bookworm-backports valkey:trixie valkey:sid redis:pypi}
logs=target/matrix
# The scripts are compared with the commands at length by `make parity`; here it is the server that differs.
export RL_PARITY_TRACES=${RL_PARITY_TRACES:-20}
mkdir -p target/servers "$logs"
rows="" failed=0 missing=0
# For each server that was tested: its version (kind and number) and its binary.
versions=() binaries=()

row() { rows+="$(printf '%-28s %-14s %-30s %6s' "$@")"$'\n'; }

# "redis 7.0.15" of a binary; nothing if it does not run.
version_of() {
  "$1" --version 2>/dev/null | sed -nE 's/^(Redis|Valkey|valkey).* v=([0-9.]+).*/\1 \2/p' | tr RV rv
}

# Every file that starts a server itself, or a cluster; the support files are none, and two versions are tested below.
files() {
  if [ $# -gt 0 ]; then printf '%s\n' "$@"; else
    grep -lE '(Server|Cluster)::(start|builder|with_timeout)\(' tests/*.rs | sed -E 's,tests/(.*)\.rs,\1,' | grep -vxE "mixed|${MATRIX_SKIP:-mixed}"
  fi
}
mapfile -t tests < <(files "$@")

# build TEST...: the programs of these test files.
build() {
  local arguments=()
  for test in "$@"; do arguments+=(--test "$test"); done
  cargo test --color never --no-run "${arguments[@]}" 2>&1 | tee >(cat >&2) | sed -nE 's/^ *Executable .*\((.*)\)$/\1/p'
}

# verdict LOG: what its tests said in all, as "412 passed".
verdict() {
  awk '/^test result:/ { passed += $4; failed += $6; ignored += $8 } END {
    if (passed + failed == 0) { print "no test ran"; exit }
    printf "%d passed", passed; if (failed) printf ", %d failed", failed; if (ignored) printf ", %d ignored", ignored }' "$1"
}

# all PROGRAM...: every one of them, also after one that failed.
all() {
  local code=0
  for program in "$@"; do
    echo "--- $program"
    "$program" || code=1
  done
  return $code
}

# run NAME BINARY VERSION
run() {
  local log="$logs/${1//[^a-zA-Z0-9.-]/_}.log" begin=$SECONDS result
  echo "--- $1: $3, ${#tests[@]} test files; all output in $log"
  if REDIS_SERVER=$2 all "${programs[@]}" >"$log" 2>&1 </dev/null; then
    result=$(verdict "$log")
  else
    result="FAILED: $(verdict "$log")" failed=1
    # What failed and why, not everything that passed.
    sed -n '/^failures:$/,/^test result/p' "$log" | tail -n 150
    grep -qE '^failures:' "$log" || tail -n 30 "$log"
  fi
  grep -h 'NOT RUN' "$log" | sort -u
  row "$1" "$3" "$result" "$((SECONDS - begin)) s"
  versions+=("$3") binaries+=("$2")
}

# offer NAME BINARY: runs it unless the very same version was tested already.
offer() {
  local version
  version=$(version_of "$2")
  if [ -z "$version" ]; then
    row "$1" "?" "FAILED: --version says nothing" "-"
    failed=1
    return
  fi
  for known in ${versions[@]+"${!versions[@]}"}; do
    if [ "${versions[$known]}" = "$version" ]; then
      row "$1" "$version" "as above, not run again" "-"
      return
    fi
  done
  run "$1" "$2" "$version"
}

echo "--- building the tests"
mapfile -t programs < <(build "${tests[@]}")
[ ${#programs[@]} -eq ${#tests[@]} ] || { echo "The tests cannot be built." >&2; exit 1; }

local_server=$(command -v "${REDIS_SERVER:-redis-server}" || command -v valkey-server || true)
if [ -n "$local_server" ] && [ "${MATRIX_HERE:-}" = tested ]; then
  versions+=("$(version_of "$local_server")") binaries+=("$local_server")
  row "here: ${local_server/#$PWD\//}" "${versions[0]}" "by make test, not run again" "-"
elif [ -n "$local_server" ]; then offer "here: ${local_server/#$PWD\//}" "$local_server"; else
  row "on PATH" "-" "NOT RUN: not there" "-"
  missing=1
fi

for entry in $MATRIX; do
  kind=${entry%%:*} suite=${entry#*:}
  folder=$PWD/target/servers/$kind-$suite
  binary=$folder/bin/$kind-server
  if [ ! -x "$binary" ] || [ -z "$(version_of "$binary")" ]; then
    echo "--- getting $kind of $suite"
    if ! scripts/server.sh "$folder" "$suite" "$kind" >"$logs/get-$kind-$suite.log" 2>&1; then
      tail -n 3 "$logs/get-$kind-$suite.log"
      row "$kind of $suite" "-" "NOT RUN: cannot be had" "-"
      missing=1
      continue
    fi
  fi
  offer "$kind of $suite" "$binary"
done

# Pairs: an older primary with each newer replica of its kind, and Redis 7.0, whose files Valkey reads, with Valkey.
older() { [ "$1" != "$2" ] && [ "$(printf '%s\n' "$1" "$2" | sort -V | head -n 1)" = "$1" ]; }
may_follow() {
  local kind=${1% *} kind2=${2% *}
  if [ "$kind" = "$kind2" ]; then older "${1#* }" "${2#* }"; else
    [ "$kind" = redis ] && older "${1#* }" 7.2 && [ "$kind2" = valkey ]
  fi
}
if [ $# -eq 0 ]; then
  mapfile -t mixed < <(build mixed)
  for first in "${!versions[@]}"; do
    for second in "${!versions[@]}"; do
      may_follow "${versions[$first]}" "${versions[$second]}" || continue
      name="${versions[$first]} -> ${versions[$second]}" log="$logs/pair-$first-$second.log" begin=$SECONDS
      if REDIS_SERVER=${binaries[$first]} REDIS_SERVER_2=${binaries[$second]} all "${mixed[@]}" >"$log" 2>&1 </dev/null &&
        grep -q '^test result: ok' "$log"; then
        result=$(verdict "$log")
      else
        result="FAILED: $(verdict "$log")" failed=1
        tail -n 60 "$log"
      fi
      row "$name" "a pair" "$result" "$((SECONDS - begin)) s"
    done
  done
fi

echo
row_head=$(printf '%-28s %-14s %-30s %6s' server version result time)
printf '%s\n%s\n%s' "$row_head" "${row_head//?/-}" "$rows"
if [ $missing -ne 0 ]; then
  echo "Some servers were not tested: target/matrix/get-*.log says why."
  if [ "${MATRIX_STRICT:-}" = 1 ]; then failed=1; fi
fi
[ ${#versions[@]} -gt 0 ] || { echo "No server at all was tested." >&2; failed=1; }
exit $failed
