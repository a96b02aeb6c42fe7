#!/usr/bin/env bash
# scripts/package.sh        builds target/dist/*.deb and *.tar.gz from the release module: `make package`; with ARCH=arm64
#                           target/dist-arm64 from the one of `make test-arm64`
# scripts/package.sh test   installs both on a clean Debian and asks: `make test-package`; as root, needs debootstrap
#
# dpkg-deb and a staged tree are all there is to it: one file, its configuration and its papers.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "package.sh: $*" >&2; exit 1; }
out=$PWD/target/dist
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | sed -n 1p)
native=$(dpkg --print-architecture)
arch=${ARCH:-$native}
machine=$(uname -m) module=target/release/libredis_rl.so strip="objcopy --strip-debug" rust=$(rustc --version)
# What scripts/arm64.sh built, and stripped since this machine's objcopy may not know how.
if [ "$arch" != "$native" ]; then
  [ "$arch" = arm64 ] || fail "no module is built here for $arch"
  out+=-$arch machine=aarch64 module=target/arm64/libredis_rl.so strip=cp rust=$(cat target/arm64/rustc)
fi
deb=$out/redis-rl_${version}_$arch.deb
name=redis-rl-$version-$machine-linux-gnu
tarball=$out/$name.tar.gz
# The time in archives: that of the commit, so that the same commit packs the same.
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}

# Licences of what is linked: every crate that the module is built from, not those that only build it.
licences() {
  local to=$1 name version dir
  mkdir -p "$to"
  cargo tree --locked -p redis-rl -e normal,no-proc-macro --prefix none --format '{p}|{l}' | sed 's/ (\*)$//' | sort -u |
    while IFS='|' read -r crate licence; do
      read -r name version _ <<<"$crate"
      version=${version#v}
      [ "$name" != redis-rl ] || continue
      echo "$name $version: $licence"
      dir=$(find "${CARGO_HOME:-$HOME/.cargo}/registry/src" -mindepth 2 -maxdepth 2 -name "$name-$version" | sed -n 1p)
      find "$dir" -maxdepth 1 -type f \( -iname 'licen[cs]e*' -o -iname 'copying*' -o -iname 'copyright*' -o -iname 'unlicense*' \) |
        while read -r file; do cp "$file" "$to/$name-$(basename "$file")"; done
      ls "$to/$name"-* >/dev/null 2>&1 || echo "  (the crate carries no licence text)"
    done >"$to/CRATES"
  echo "The Rust standard library $(cut -d ' ' -f 2 <<<"$rust"): MIT OR Apache-2.0" >>"$to/CRATES"
  # Not in every installation of a toolchain.
  local std
  std=$(rustc --print sysroot)/share/doc/rust
  for file in COPYRIGHT-library.html licenses/MIT.txt licenses/Apache-2.0.txt; do
    if [ -e "$std/$file" ]; then cp "$std/$file" "$to/rust-std-$(basename "$file")"; fi
  done
}

papers() {
  local to=$1
  mkdir -p "$to/docs"
  cp README.md CHANGELOG.md "$to"
  cp -r docs/. "$to/docs"
  rm -f "$to/docs/redis-rl.7" "$to/docs/redis-rl.7.in"
  licences "$to/licences"
}

build() {
  local stage=$out/stage glibc
  [ -n "${DEBEMAIL:-}" ] || echo "package.sh: DEBEMAIL is not set: the package names no maintainer to write to" >&2
  [ -e "$module" ] || fail "$module is not there: make build"
  rm -rf "$out"
  mkdir -p "$stage/usr/lib/redis/modules" "$stage/usr/share/redis-rl" "$stage/usr/share/man/man7" "$stage/usr/bin" "$stage/etc" "$stage/DEBIAN"
  # Names stay, for crash reports; line tables go.
  $strip "$module" "$stage/usr/lib/redis/modules/libredis_rl.so"
  chmod 755 "$stage/usr/lib/redis/modules/libredis_rl.so"
  cp packaging/redis-rl.conf "$stage/etc/redis-rl.conf"
  cp packaging/redis-rl-metrics "$stage/usr/bin"
  cp -r lua "$stage/usr/share/redis-rl/lua"
  rm -rf "$stage/usr/share/redis-rl/lua/src" "$stage/usr/share/redis-rl/lua/build.sh"
  gzip -9n <docs/redis-rl.7 >"$stage/usr/share/man/man7/redis-rl.7.gz"
  papers "$stage/usr/share/doc/redis-rl"
  {
    echo "redis-rl"
    echo
    cat LICENSE
    echo
    echo "The module links the crates below; their licences are in /usr/share/doc/redis-rl/licences."
    echo
    cat "$stage/usr/share/doc/redis-rl/licences/CRATES"
  } >"$stage/usr/share/doc/redis-rl/copyright"

  # The newest symbols of libc that the module asks for say how old a libc may be.
  glibc=$(readelf -VW "$module" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1)
  cat >"$stage/DEBIAN/control" <<CONTROL
Package: redis-rl
Version: $version
Section: database
Priority: optional
Architecture: $arch
Maintainer: ${DEBFULLNAME:-redis-rl maintainers} <${DEBEMAIL:-redis-rl@localhost}>
Depends: libc6 (>= ${glibc#GLIBC_}), libgcc-s1
Recommends: redis-server (>= 5:7.0) | valkey-server
Installed-Size: $(du -sk --exclude=DEBIAN "$stage" | cut -f 1)
Description: native rate-limit commands for Redis and Valkey
 A module with five exact rate limiters as commands: fixed window, sliding log,
 sliding counter, token bucket and GCRA. A key is a limiter; it expires,
 replicates and persists like any other.
 .
 To load it: include /etc/redis-rl.conf
CONTROL
  echo /etc/redis-rl.conf >"$stage/DEBIAN/conffiles"
  (cd "$stage" && find . -type f ! -path './DEBIAN/*' -printf '%P\0' | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
  find "$stage" -type d -exec chmod 755 {} +
  dpkg-deb --root-owner-group --build "$stage" "$deb" >/dev/null

  # The same in one folder, for systems without dpkg.
  mkdir -p "$out/$name/man"
  cp "$stage/usr/lib/redis/modules/libredis_rl.so" "$out/$name"
  sed 's#/usr/lib/redis/modules/#/path/to/#; s#/etc/#/path/to/#' packaging/redis-rl.conf >"$out/$name/redis-rl.conf"
  cp packaging/redis-rl-metrics "$out/$name"
  cp -r "$stage/usr/share/redis-rl/lua" "$out/$name/lua"
  cp -r "$stage/usr/share/doc/redis-rl/." "$out/$name"
  rm "$out/$name/copyright"
  cp LICENSE "$out/$name"
  cp docs/redis-rl.7 "$out/$name/man"
  tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -C "$out" -cf - "$name" | gzip -9n >"$tarball"
  rm -rf "$stage" "${out:?}/$name"
  (cd "$out" && sha256sum -- *.deb *.tar.gz >SHA256SUMS && cat SHA256SUMS)
}

# A Debian of its own: only what the suite has, and nothing of this machine.
try() {
  local root=$out/root suite mirror
  suite=${SUITE:-$(. /etc/os-release && echo "$VERSION_CODENAME")}
  [ "$(id -u)" -eq 0 ] || fail "a clean root is made as root"
  command -v debootstrap >/dev/null || fail "debootstrap is needed"
  [ -e "$deb" ] && [ -e "$tarball" ] || fail "make package first"
  mirror=${DEBIAN_MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' 'Origin: Debian' 'Label: Debian' | sed -n 1p)}
  [ -n "$mirror" ] || fail "apt knows no Debian mirror: name one in DEBIAN_MIRROR"
  rm -rf --one-file-system "$root"
  echo "--- a clean $suite with redis-server"
  debootstrap --variant=minbase --include=redis-server,mandoc "$suite" "$root" "$mirror" >"$out/debootstrap.log" ||
    { tail -n 20 "$out/debootstrap.log" >&2; fail "debootstrap"; }
  cp "$deb" "$tarball" "$root/tmp"
  cat >"$root/tmp/try.sh" <<'TRY'
set -eu
ask() { redis-cli -p "$PORT" "$@"; }
trap 'ask shutdown nosave >/dev/null 2>&1 || true' EXIT
serve() {
  redis-server "$@" --port "$PORT" --bind 127.0.0.1 --save '' --dir /tmp --daemonize yes --pidfile /tmp/pid --logfile /tmp/log
  tries=0
  until [ "$(ask ping 2>&1)" = PONG ]; do
    tries=$((tries + 1))
    [ "$tries" -lt 100 ] || { cat /tmp/log >&2; exit 1; }
    sleep 0.1
  done
}
stop() {
  ask shutdown nosave
  while [ -e /tmp/pid ]; do sleep 0.1; done
}
check() { echo "$1"; [ "$2" = "$3" ] || { echo "got $2, not $3" >&2; exit 1; }; }

dpkg -i /tmp/*.deb
check "dpkg finds all files as packed" "$(dpkg -V redis-rl)" ""
echo 'include /etc/redis-rl.conf' >/tmp/own.conf
serve /tmp/own.conf
check "the module answers" "$(ask RL.GCRA k 10 1000 0 | tr '\n' ' ')" "1 10 9 0 100 "
check "and is configured" "$(ask CONFIG GET ratelimit.max-skew-ms | tail -n 1)" 0
check "a script of the package answers the same" \
  "$(ask --eval /usr/share/redis-rl/lua/gcra.lua s , 10 1000 0 | tr '\n' ' ')" "1 10 9 0 100 "
check "its metrics are told" "$(redis-rl-metrics -p "$PORT" | grep -c '^redis_rl_checks_total{algorithm="gcra"} 1$')" 1
stop
check "the manual page has the commands" "$(mandoc -T ascii /usr/share/man/man7/redis-rl.7.gz | sed "s/.\x08//g" | grep -c 'RL.MULTI')" 2
check "mandoc finds no fault in it" "$(mandoc -T lint -W warning /usr/share/man/man7/redis-rl.7.gz || true)" ""
[ -s /usr/share/doc/redis-rl/copyright ] && ls /usr/share/doc/redis-rl/licences | grep -q '^redis-module-'
dpkg --purge redis-rl
check "nothing is left of it" "$(find / -xdev \( -name 'redis-rl*' -o -name 'libredis_rl*' \) ! -path '/tmp/*')" ""
cd /tmp && tar xzf redis-rl-*.tar.gz && cd redis-rl-*/
serve --loadmodule "$PWD/libredis_rl.so"
check "the tarball's module answers" "$(ask RL.FIXED f 3 1000 0 | tr '\n' ' ')" "1 3 2 0 1000 "
stop
for part in redis-rl.conf lua/gcra.lua docs/TIME.md docs/charts/boundary.svg licences/CRATES LICENSE man/redis-rl.7; do
  [ -s "$part" ] || { echo "the tarball lacks $part" >&2; exit 1; }
done
TRY
  PORT=$((20000 + RANDOM % 10000)) chroot "$root" sh /tmp/try.sh
  rm -rf --one-file-system "$root"
  echo "installed, used and removed on a clean $suite"
}

case ${1:-build} in
  build) build ;;
  test) try ;;
  *) fail "usage: scripts/package.sh [test]" ;;
esac
