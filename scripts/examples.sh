#!/usr/bin/env bash
# Builds the example services under target/examples and drives them all: `make test-examples`.
#
# Needs Python 3 with venv, node and npm, Go and redigo; with apt, installs what is missing. What the package managers
# of the languages fetch stays in target/ as well: nothing is written beside the sources.
set -euo pipefail
cd "$(dirname "$0")/.."

have() { command -v "$1" >/dev/null 2>&1; }

redigo=github.com/gomodule/redigo/redis
debian_go=/usr/share/gocode

missing=()
python3 -c 'import venv, ensurepip' 2>/dev/null || missing+=(python3-venv)
have node || missing+=(nodejs)
have npm || missing+=(npm)
have go || missing+=(golang-go)
if have apt-get && [ ! -d "$debian_go/src/$redigo" ]; then missing+=(golang-github-gomodule-redigo-dev); fi
if [ ${#missing[@]} -gt 0 ]; then
  echo "examples: missing: ${missing[*]}"
  have apt-get || { echo "examples: please install them" >&2; exit 1; }
  sudo=""
  [ "$(id -u)" -eq 0 ] || sudo=sudo
  try="$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends"
  $try "${missing[@]}" || { $sudo apt-get update && $try "${missing[@]}"; }
fi

out=$PWD/target/examples
mkdir -p "$out/node" "$out/go"

echo "--- python"
[ -x "$out/venv/bin/python" ] || python3 -m venv "$out/venv"
"$out/venv/bin/pip" install --quiet --disable-pip-version-check -r examples/python/requirements.txt

echo "--- node"
cp examples/node/* "$out/node"
(cd "$out/node" && npm ci --no-audit --no-fund)

echo "--- go"
if [ -d "$debian_go/src/$redigo" ]; then
  # Debian's packages of Go sources are a GOPATH.
  (cd examples/go && GO111MODULE=off GOPATH=$debian_go GOFLAGS=-buildvcs=false go build -o "$out/go-service" .)
else
  cp examples/go/* "$out/go"
  (cd "$out/go" && go mod tidy && go build -o "$out/go-service" .)
fi

echo "--- rust, and the scenario for all"
RL_MODULE=${RL_MODULE:-$PWD/target/release/libredis_rl.so} cargo test -p redis-rl-examples -p redis-rl-replay
