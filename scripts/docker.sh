#!/usr/bin/env bash
# scripts/docker.sh COMMAND...
#
# Runs COMMAND with a Docker engine: the one that answers, or else one of its own, started for the time of the command.
# That needs root and dockerd (Debian: docker.io; scripts/docker.sh installs nothing). Ends with 77 if no engine can be
# had, and says why.
#
#   DOCKER   the client, `docker` unless said otherwise
set -uo pipefail
DOCKER=${DOCKER:-docker}
export DOCKER

none() { echo "NOT RUN: containers, no Docker engine: $*" >&2; exit 77; }
[ $# -gt 0 ] || { echo "usage: scripts/docker.sh COMMAND..." >&2; exit 2; }
command -v "$DOCKER" >/dev/null || none "no docker on PATH"
if timeout 10 "$DOCKER" info >/dev/null 2>&1; then exec "$@"; fi
command -v dockerd >/dev/null || none "none answers, and there is no dockerd to start one"
[ "$(id -u)" -eq 0 ] || none "none answers, and starting one needs root"

# A socket's path must be short. No rules of iptables: ports are published by the proxy, and other networks stay as they are.
folder=$(mktemp -d /tmp/rl-docker.XXXXXX)
dockerd -H "unix://$folder/docker.sock" --data-root "$folder/data" --exec-root "$folder/exec" \
  --pidfile "$folder/docker.pid" --iptables=false >"$folder/log" 2>&1 </dev/null &
engine=$!
end() {
  kill "$engine" 2>/dev/null && wait "$engine" 2>/dev/null
  # What the engine leaves mounted once a container had this machine's network.
  umount "$folder"/exec/netns/* 2>/dev/null
  rm -rf "$folder"
}
trap end EXIT
trap 'exit 130' INT TERM
export DOCKER_HOST=unix://$folder/docker.sock
for _ in $(seq 120); do
  if "$DOCKER" info >/dev/null 2>&1; then
    echo "docker: an engine of its own, $("$DOCKER" version --format '{{.Server.Version}}')"
    "$@"
    exit
  fi
  kill -0 "$engine" 2>/dev/null || break
  sleep 0.25
done
tail -n 5 "$folder/log" >&2
none "dockerd did not start"
