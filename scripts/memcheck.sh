#!/usr/bin/env bash
# scripts/memcheck.sh [TEST...]
#
# Runs the tests that start a server with every server under valgrind's memcheck. A server with an error or a leak in
# which the module has a part fails the run; what the server does by itself is let go (scripts/memcheck.supp, and
# stacks without libredis_rl.so). TEST names test files; by default those that go everywhere. Before them the unit tests
# run under memcheck themselves: the shims on a fake server, where any error or leak fails.
#
# Memcheck stands in for the allocator, a dynamically linked jemalloc such as Debian's too, and so sees every block.
set -euo pipefail
cd "$(dirname "$0")/.."

command -v valgrind >/dev/null || scripts/setup.sh bench
server=$(command -v "${REDIS_SERVER:-redis-server}" || command -v valkey-server)
logs=$PWD/target/memcheck
rm -rf "$logs" && mkdir -p "$logs"
cat >"$logs/server" <<WRAPPER
#!/bin/sh
[ "\$1" = --version ] && exec "$server" --version
exec valgrind --quiet --soname-synonyms='somalloc=libjemalloc*' --leak-check=full --show-leak-kinds=definite --errors-for-leak-kinds=definite --num-callers=30 \\
  --suppressions="$PWD/scripts/memcheck.supp" --log-file="$logs/%p.log" "$server" "\$@"
WRAPPER
chmod +x "$logs/server"
"$server" --version
host=$(rustc -vV | sed -n 's/^host: //p' | tr a-z- A-Z_)
env "CARGO_TARGET_${host}_RUNNER=valgrind --quiet --leak-check=full --show-leak-kinds=definite --errors-for-leak-kinds=definite --error-exitcode=1" \
  cargo test --lib
tests=("$@")
[ ${#tests[@]} -gt 0 ] || tests=(commands companions hostile persistence replication vectors watching)
arguments=()
for test in "${tests[@]}"; do arguments+=(--test "$test"); done
status=0
# A server takes some thirty times as long; clients wait for it.
RL_END_GENTLY=1 RL_SLOW=10 RL_FUZZ=${RL_FUZZ:-3000} RL_OPTIONS=${RL_OPTIONS:-20000} RL_HUGE_MB=${RL_HUGE_MB:-1} REDIS_SERVER="$logs/server" \
  cargo test --no-fail-fast "${arguments[@]}" -- --test-threads 2 || status=$?
echo "--- servers: $(find "$logs" -name '*.log' | wc -l), tests: rc $status"
if grep -l 'libredis_rl' "$logs"/*.log; then
  echo 'memcheck: the module has a part in the errors above' >&2
  exit 1
fi
echo 'memcheck: nothing of the module'
exit $status
