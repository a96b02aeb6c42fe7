#!/usr/bin/env bash
# scripts/asan.sh [TEST...]
#
# Runs the unit tests built for AddressSanitizer, and the tests that start a server with a module built for it, inside
# the ordinary server: the sanitizer's library (gcc's) is loaded first and stands in for the allocator. A report ends its
# server and so fails its test; a leak is told when a server ends. Reports are kept in target/asan/reports, and any of
# them fails the run. One test is left out: it compares what the server's own allocator gave.
set -euo pipefail
cd "$(dirname "$0")/.."

server=$(command -v "${REDIS_SERVER:-redis-server}" || command -v valkey-server)
library=$(realpath "$(cc -print-file-name=libasan.so)")
[ -f "$library" ] || { echo 'asan: gcc has no libasan.so here' >&2; exit 1; }
target=$(rustc -vV | sed -n 's/^host: //p')
# A sanitizer is an option that a stable compiler has, too, once it is told so.
sanitized() { RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address cargo "$@" --target "$target" --target-dir target/asan; }
sanitized test --lib
sanitized build --release
logs=$PWD/target/asan/reports
rm -rf "$logs" && mkdir -p "$logs"
cat >"$logs/server" <<WRAPPER
#!/bin/sh
[ "\$1" = --version ] && exec "$server" --version
export ASAN_OPTIONS=abort_on_error=0:detect_odr_violation=0:log_path=$logs/report
LD_PRELOAD="$library" exec "$server" "\$@"
WRAPPER
chmod +x "$logs/server"
"$server" --version
tests=("$@")
[ ${#tests[@]} -gt 0 ] ||
  tests=(commands companions compat config faults hostile persistence replication scenarios silence vectors watching)
arguments=()
for test in "${tests[@]}"; do arguments+=(--test "$test"); done
status=0
RL_END_GENTLY=1 RL_MODULE=$PWD/target/asan/$target/release/libredis_rl.so REDIS_SERVER="$logs/server" \
  cargo test --no-fail-fast "${arguments[@]}" -- --skip memory_usage_is_what_the_allocator_gave || status=$?
if compgen -G "$logs/report.*" >/dev/null; then
  head -n 40 "$logs"/report.*
  exit 1
fi
echo "asan: no report; tests: rc $status"
exit $status
