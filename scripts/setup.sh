#!/usr/bin/env bash
# Installs what building and testing redis-rl needs and this machine lacks. Says what and why before it does;
# does nothing, and says nothing, where all is there.
#
#   cc                          links Rust code
#   clang, libclang             read the server's module header when the bindings are generated
#   redis- or valkey-server     runs the module; $REDIS_SERVER may name one that is not on PATH
#   valgrind                    counts instructions; only as `scripts/setup.sh bench`
#   docker, docker-compose      run the container tests; only as `scripts/setup.sh containers`
#   cargo                       from rustup: distributions often carry one too old, so it is never installed here
set -euo pipefail
cd "$(dirname "$0")/.."

have() { command -v "$1" >/dev/null 2>&1; }

have_libclang() {
  # Where bindgen looks, on Linux and macOS.
  local file
  for file in ${LIBCLANG_PATH:+"$LIBCLANG_PATH"/libclang*} \
    /usr/lib/llvm*/lib/libclang[.-]*so* /usr/lib/llvm*/lib64/libclang[.-]*so* \
    /usr/lib/*-linux-*/libclang[.-]*so* /usr/lib64/libclang[.-]*so* /usr/lib/libclang[.-]*so* \
    /usr/lib64/llvm*/lib*/libclang[.-]*so* \
    /opt/homebrew/opt/llvm/lib/libclang.dylib /usr/local/opt/llvm/lib/libclang.dylib \
    /Library/Developer/CommandLineTools/usr/lib/libclang.dylib; do
    [ -e "$file" ] && return 0
  done
  return 1
}

missing=() why=()
need() { missing+=("$1"); why+=("$1 ($2)"); }
have cc || need cc "links Rust code"
have clang && have_libclang || need clang "reads the server's module header"
have "${REDIS_SERVER:-redis-server}" || have valkey-server || need redis-server "runs the module"
case ${1:-} in
  bench) have valgrind || need valgrind "counts instructions for make bench" ;;
  containers)
    have docker || need docker "runs the container tests"
    docker compose version >/dev/null 2>&1 || have docker-compose || need docker-compose "starts compose.yaml"
    ;;
esac

# The packages of the missing things, as one package manager calls them.
packages() {
  local thing
  for thing in "${missing[@]}"; do
    case "$1:$thing" in
      apt:cc) echo gcc libc6-dev ;;   apt:clang) echo clang libclang-dev ;;   apt:redis-server) echo redis-server ;;
      dnf:cc) echo gcc ;;             dnf:clang) echo clang clang-devel ;;    dnf:redis-server) echo valkey ;;
      apk:cc) echo build-base ;;      apk:clang) echo clang clang-dev ;;      apk:redis-server) echo redis ;;
      *:valgrind) echo valgrind ;;
      apt:docker) echo docker.io ;;   dnf:docker) echo moby-engine ;;         *:docker) echo docker ;;
      apk:docker-compose) echo docker-cli-compose ;;                          *:docker-compose) echo docker-compose ;;
      brew:cc | brew:clang) echo llvm ;;                                      brew:redis-server) echo redis ;;
    esac
  done | tr ' ' '\n' | sort -u | paste -sd ' ' -
}

# Debian starts a server it installs, on the port that `make run` wants. Only the binary is wanted here: policy-rc.d,
# Debian's own switch for this, keeps it from starting now, and disabling it keeps it from starting at the next boot.
install_with_apt() {
  local sudo="" policy=/usr/sbin/policy-rc.d
  if [ "$(id -u)" -ne 0 ]; then
    have sudo || { echo "setup: that needs root: run this as root, or install sudo" >&2; exit 1; }
    sudo=sudo
  fi
  if [ ! -e "$policy" ]; then
    # shellcheck disable=SC2064  # expanded now: the variables are gone when the trap runs
    trap "$sudo rm -f $policy" EXIT
    printf '#!/bin/sh\nexit 101\n' | $sudo tee "$policy" >/dev/null
    $sudo chmod +x "$policy"
  fi
  # Lists that are too old or not there yet make the first try fail.
  local try="$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends"
  # shellcheck disable=SC2046,SC2086  # both are lists of words
  $try $(packages apt) || { $sudo apt-get update && $try $(packages apt); }
  case " ${missing[*]} " in
    *" redis-server "*) if have systemctl; then $sudo systemctl disable redis-server >/dev/null 2>&1 || true; fi ;;
  esac
}

if [ ${#missing[@]} -gt 0 ]; then
  printf 'setup: missing: %s\n' "${why[@]}"
  if have apt-get; then
    echo "setup: installing with apt-get: $(packages apt)"
    install_with_apt
  else
    echo "setup: this script installs with apt-get only; please install these yourself:" >&2
    for manager in "dnf install" "apk add" "brew install"; do
      printf '  %-13s %s\n' "$manager" "$(packages "${manager%% *}")" >&2
    done
    exit 1
  fi
fi

rust=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
if ! have cargo; then
  echo "setup: cargo is missing: install Rust $rust or newer with rustup (https://rustup.rs)" >&2
  exit 1
fi
found=$(cargo --version | cut -d ' ' -f 2)
if [ "$(printf '%s\n' "$rust" "$found" | sort -V | head -n 1)" != "$rust" ]; then
  echo "setup: cargo $found is too old: install Rust $rust or newer with rustup (https://rustup.rs)" >&2
  exit 1
fi
