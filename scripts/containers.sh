#!/usr/bin/env bash
# scripts/docker.sh scripts/containers.sh
#
# Builds the image, runs the tests of containers/ on it, which are those of tests/, and starts compose.yaml.
#
#   RL_BASE    official   from the official images; needs a registry, and compiles within: minutes
#              local      from an image of this machine's own server, with the module built here
#              (unset)    official where a registry answers, else local; it says which
#   RL_IMAGE   images to test that are there already, separated by blanks: nothing is built, nor composed
#   RL_TESTS   arguments for the tests' harness, as `persistence::` or `--skip failover::`; all tests, if empty
#
# Ends with 77 where the engine runs no container at all.
set -euo pipefail
cd "$(dirname "$0")/.."
# A path: docker() below would call itself.
DOCKER=$(command -v "${DOCKER:-docker}")

build() { echo "--- image $1"; "$DOCKER" build --network host -t "$@" .; }

composed=()
if [ -z "${RL_IMAGE:-}" ]; then
  base=${RL_BASE:-}
  if [ -z "$base" ]; then
    if timeout 120 "$DOCKER" pull -q redis:8; then base=official; else base=local; fi
  fi
  case $base in
    official)
      build redis-rl:test-redis
      build redis-rl:test-valkey --build-arg KIND=valkey --build-arg SERVER_IMAGE=valkey/valkey:8
      RL_IMAGE="redis-rl:test-redis redis-rl:test-valkey"
      composed=(KIND=redis)
      ;;
    local)
      echo "NOT RUN: the official images; this machine's own server stands in for them (scripts/containers.sh)"
      [ -e target/release/libredis_rl.so ] || cargo build --release
      server=${REDIS_SERVER:-$(command -v redis-server || command -v valkey-server)}
      kind=$(basename "$server") kind=${kind%-server}
      scripts/base-image.sh redis-rl-base:local "$server"
      "$DOCKER" run --rm redis-rl-base:local "$kind-server" --version >/dev/null ||
        { echo "NOT RUN: containers, the engine runs none" >&2; exit 77; }
      build "redis-rl:test-$kind" --target prebuilt --build-arg KIND="$kind" \
        --build-arg SERVER_IMAGE=redis-rl-base:local
      RL_IMAGE=redis-rl:test-$kind
      composed=(SERVER_IMAGE=redis-rl-base:local KIND="$kind" TARGET=prebuilt)
      ;;
    *) echo "RL_BASE is neither official nor local: $base" >&2; exit 2 ;;
  esac
fi

echo "NOT RUN: in containers, tests of other programs and modules (compat, metrics, mixed, next_version, readme, shell)," \
  "of cut networks (netsplit) and a full disk (one of faults); cluster, endurance, lua and parity for their length"
for image in $RL_IMAGE; do
  # The image's own promise, before any test: it gets healthy, and with a password, too.
  container=$("$DOCKER" run -d "$image" --requirepass secret)
  for _ in $(seq 120); do
    health=$("$DOCKER" inspect --format '{{.State.Health.Status}}' "$container")
    [ "$health" = starting ] || break
    sleep 0.5
  done
  [ "$health" = healthy ] || "$DOCKER" logs "$container"
  "$DOCKER" rm -fv "$container" >/dev/null
  echo "$image: $health"
  [ "$health" = healthy ]

  # A hundred crates that only wait for a socket: not worth optimising.
  # shellcheck disable=SC2086  # a list of words
  RL_IMAGE=$image CARGO_TARGET_DIR=$PWD/target/containers CARGO_PROFILE_DEV_OPT_LEVEL=0 CARGO_PROFILE_DEV_DEBUG=0 \
    cargo test -p redis-rl-containers -- --test-threads 3 --skip faults::a_full_disk ${RL_TESTS:-}
done

# Docker's lines of OPERATIONS.md with this run's base, on a free port, in the background, and with an image and a volume
# that are no user's.
docker() {
  local verb=$1
  shift
  set -- "${@/#redis-rl/redis-rl:test-shown}"
  case $verb in
    build) "$DOCKER" build --network host ${TARGET:+--target "$TARGET"} --build-arg KIND --build-arg SERVER_IMAGE "$@" ;;
    run)
      set -- "${@/#limits:/}"
      container=$("$DOCKER" run -d "${@/%:6379:6379/::6379}")
      ;;
    compose) scripts/compose.sh ;;
  esac
}
shown() {
  export SERVER_IMAGE=${SERVER_IMAGE:-redis:8} KIND=${KIND:-redis} TARGET=${TARGET:-}
  mapfile -t lines < <(sed -nE 's/^(docker [^#]*).*/\1/p' docs/OPERATIONS.md)
  for line in "${lines[@]}"; do
    echo "--- $line"
    eval "$line"
  done
  local answer last=$((SECONDS + 60))
  until answer=$("$DOCKER" exec "$container" "$KIND-cli" RL.GCRA user:$SECONDS 10 1000 0 2>&1 | paste -sd ' '); [ "$answer" = "1 10 9 0 100" ]; do
    [ $SECONDS -lt $last ] || { echo "RL.GCRA: $answer"; "$DOCKER" logs "$container"; return 1; }
    sleep 1
  done
  [ "$("$DOCKER" exec "$container" "$KIND-cli" CONFIG GET maxmemory | tail -n 1)" = 268435456 ]
  "$DOCKER" rm -fv "$container" >/dev/null
  echo "as OPERATIONS.md shows it: $answer"
}
if [ ${#composed[@]} -gt 0 ]; then export "${composed[@]}"; shown; fi
