#!/usr/bin/env bash
# scripts/docker.sh scripts/containers.sh
#
# Builds the image and runs the tests of containers/ on it.
#
#   RL_BASE    official   from the official images; needs a registry, and compiles within: minutes
#              local      from an image of this machine's own server, with the module built here
#              (unset)    official where a registry answers, else local; it says which
#   RL_IMAGE   images to test that are there already, separated by blanks: nothing is built
#
# Ends with 77 where the engine runs no container at all.
set -euo pipefail
cd "$(dirname "$0")/.."
DOCKER=${DOCKER:-docker}

build() { echo "--- image $1"; "$DOCKER" build --network host -t "$@" .; }

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
      ;;
    *) echo "RL_BASE is neither official nor local: $base" >&2; exit 2 ;;
  esac
fi
export RL_IMAGE

# The image's own promise, before any test: it gets healthy.
for image in $RL_IMAGE; do
  container=$("$DOCKER" run -d "$image")
  for _ in $(seq 120); do
    health=$("$DOCKER" inspect --format '{{.State.Health.Status}}' "$container")
    [ "$health" = starting ] || break
    sleep 0.5
  done
  [ "$health" = healthy ] || "$DOCKER" logs "$container"
  "$DOCKER" rm -fv "$container" >/dev/null
  echo "$image: $health"
  [ "$health" = healthy ]
done

# A hundred crates that only wait for a socket: not worth optimising.
CARGO_TARGET_DIR=$PWD/target/containers CARGO_PROFILE_DEV_OPT_LEVEL=0 CARGO_PROFILE_DEV_DEBUG=0 RL_MODULE=$PWD/target/release/libredis_rl.so \
  cargo test -p redis-rl-containers -- --nocapture
