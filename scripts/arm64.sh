#!/usr/bin/env bash
# scripts/arm64.sh [TEST...]
#
# Builds the module for arm64 on x86-64, and runs TEST files (below, if none is named) on Debian's arm64 servers under
# qemu: `make test-arm64`. As root, with debootstrap and apt; ends with 77 where that cannot be, and says why.
#
# The compilers are those of Debian sid, in a root of their own: with them comes a standard library for arm64, which
# otherwise takes rustup. Nothing is installed here; all is kept in target/arm64 (4 GB), and the module is
# target/arm64/libredis_rl.so.
set -euo pipefail
cd "$(dirname "$0")/.."

none() { echo "NOT RUN: arm64: $*" >&2; exit 77; }
[ "$(id -u)" -eq 0 ] || none "a root for the compilers is made as root"
command -v debootstrap >/dev/null || none "debootstrap is missing"
[ "$(dpkg --print-architecture)" = amd64 ] || none "this is no x86-64: make test does here"
mirror=${DEBIAN_MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' 'Origin: Debian' 'Label: Debian' | sed -n 1p)}
[ -n "$mirror" ] || none "apt knows no Debian mirror: name one in DEBIAN_MIRROR"
out=$PWD/target/arm64 root=$PWD/target/arm64/root
mkdir -p "$out"

inside() { chroot "$root" env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive "$@"; }

if [ ! -e "$out/ready" ]; then
  echo "--- the compilers of sid"
  rm -rf --one-file-system "$root"
  debootstrap --variant=minbase sid "$root" "$mirror" >"$out/debootstrap.log" || { tail "$out/debootstrap.log"; none "debootstrap"; }
  # A mirror that stands still is old after a week.
  printf '%s\n' 'Acquire::Retries "3";' 'Acquire::Check-Valid-Until "false";' 'APT::Install-Recommends "false";' 'APT::Sandbox::User "root";' 'Dpkg::Use-Pty "false";' \
    >"$root/etc/apt/apt.conf.d/99arm64"
  inside dpkg --add-architecture arm64
  inside apt-get update
  inside apt-get install -qqy rustc cargo clang libclang-dev libstd-rust-dev:arm64 >"$out/install.log"
  inside apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross -qqy >>"$out/install.log"
  touch "$out/ready"
fi
inside rustc --version >"$out/rustc"
echo "--- the module, by $(cat "$out/rustc")"
# The sources as git has them here, and the crates, which the root cannot fetch.
rm -rf "$root/src"
mkdir -p "$root/src/.cargo"
git ls-files -z | xargs -0 tar -cf - | tar -C "$root/src" -xf -
cargo vendor --locked --quiet "$root/src/vendor" >/dev/null
printf '%s\n' '[source.crates-io]' 'replace-with = "vendor"' '[source.vendor]' 'directory = "vendor"' >"$root/src/.cargo/config.toml"
inside sh -ec '
cd /src
export CARGO_TARGET_DIR=/build
CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
BINDGEN_EXTRA_CLANG_ARGS_aarch64_unknown_linux_gnu=--sysroot=/usr/aarch64-linux-gnu \
  cargo build --release --target aarch64-unknown-linux-gnu
'
inside aarch64-linux-gnu-objcopy --strip-debug /build/aarch64-unknown-linux-gnu/release/libredis_rl.so /build/libredis_rl.so
cp "$root/build/libredis_rl.so" "$out"
echo "target/arm64/libredis_rl.so: $(readelf -h "$out/libredis_rl.so" | sed -n "s/ *Machine: *//p"), needs $(readelf -VW "$out/libredis_rl.so" | grep -o "GLIBC_[0-9.]*" | sort -uV | tail -n 1)"

if [ ! -x "$out/usr/bin/qemu-aarch64-static" ]; then
  (cd "$out" && apt-get -o APT::Sandbox::User=root download -q qemu-user-static && dpkg -x qemu-user-static_*.deb .) ||
    none "qemu-user-static cannot be had with apt: its lists may be too old"
fi
tests=("$@")
[ ${#tests[@]} -gt 0 ] || tests=(vectors)
arguments=()
for test in "${tests[@]}"; do arguments+=(--test "$test"); done
for kind in redis valkey; do
  server=$out/$kind/bin/$kind-server
  [ -x "$server" ] || ARCH=arm64 EMULATOR=$out/usr/bin/qemu-aarch64-static scripts/server.sh "$out/$kind" sid $kind
  echo "--- $("$server" --version)"
  RL_MODULE=$out/libredis_rl.so REDIS_SERVER=$server cargo test --no-fail-fast "${arguments[@]}"
done
