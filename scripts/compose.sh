#!/usr/bin/env bash
# scripts/docker.sh scripts/compose.sh
#
# Starts compose.yaml, charges on the primary, reads the replica, takes the containers away, and finds all of it again
# in the volumes. Leaves nothing behind.
#
#   SERVER_IMAGE, KIND   as compose.yaml takes them
#   TARGET               a stage of the Dockerfile; `prebuilt` takes target/release/libredis_rl.so and compiles nothing
set -euo pipefail
cd "$(dirname "$0")/.."
DOCKER=${DOCKER:-docker} KIND=${KIND:-redis}
if "$DOCKER" compose version >/dev/null 2>&1; then compose=("$DOCKER" compose)
elif command -v docker-compose >/dev/null; then compose=(docker-compose)
else
  echo "NOT RUN: compose.yaml, there is neither docker compose nor docker-compose"
  exit
fi
echo "--- compose.yaml, by compose $("${compose[@]}" version --short)"

# The image has a name of its own. An engine without rules of iptables gives a build no other network.
image="image: '$KIND-rl:test-compose'"
override=$(mktemp)
echo "{ services: { replica: { $image },
  primary: { $image, build: { network: host${TARGET:+, target: $TARGET} } } } }" >"$override"
# Any free ports.
export KIND PORT=0 REPLICA_PORT=0 COMPOSE_PROJECT_NAME=redis-rl-test-$$
stack() { "${compose[@]}" -f compose.yaml -f "$override" "$@"; }
end() {
  local code=$?
  [ $code -eq 0 ] || stack logs --tail 20
  stack down -v --rmi all >/dev/null 2>&1
  rm -f "$override"
  exit $code
}
trap end EXIT

# await WANT COMMAND...: until the command says so.
await() {
  local want=$1 said="" last=$((SECONDS + 90))
  shift
  until said=$("$@" 2>&1) && [ "$said" = "$want" ]; do
    [ $SECONDS -lt $last ] || { echo "$*: $said, not $want" >&2; return 1; }
    sleep 0.2
  done
}
health() { "$DOCKER" inspect --format '{{.State.Health.Status}}' "$(stack ps -q "$1")"; }
cli() { stack exec -T "$1" "$KIND-cli" "${@:2}"; }
inspect() { cli "$1" RL.INSPECT user:1 1700000000000; }
# What the published port answers to PING.
ping() {
  local address answer
  address=$(stack port "$1" 6379)
  exec 3<>"/dev/tcp/${address/://}"
  printf 'PING\r\n' >&3
  read -t 5 -r answer <&3
  exec 3>&-
  echo "${address%:*} ${answer%$'\r'}"
}

stack up -d --build
for service in primary replica; do
  await healthy health $service
  await "127.0.0.1 +PONG" ping $service
done
reply=$(cli primary RL.GCRA user:1 5 86400000 1700000000000 COST 3 | paste -sd ' ')
[ "$reply" = "1 5 2 0 51840000" ] || { echo "RL.GCRA answered $reply"; exit 1; }
state=$(inspect primary)
await "$state" inspect replica
stack down
stack up -d
await "$state" inspect primary
await "$state" inspect replica
echo "compose.yaml: after a charge, and after down and up, primary and replica say"
paste -sd ' ' <<<"$state"
