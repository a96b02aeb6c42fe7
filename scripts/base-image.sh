#!/usr/bin/env bash
# scripts/base-image.sh NAME [SERVER]
#
# Makes the image NAME of the server on this machine (or SERVER, the path of a redis-server or valkey-server): its
# programs and the libraries they load. It stands in for the official image where no registry can be reached.
set -euo pipefail
name=$1 server=$(command -v "${2:-${REDIS_SERVER:-redis-server}}")
kind=$(basename "$server") kind=${kind%-server}
cli=$(dirname "$server")/$kind-cli
fs=$(mktemp -d)
trap 'rm -rf "$fs"' EXIT

# put FILE [PLACE]: a file, and what its loader finds for it.
put() {
  local place=$fs${2:-$1}
  mkdir -p "$(dirname "$place")"
  cp -L "$1" "$place"
}
libraries() { ldd "$1" | sed -nE 's/^.*(=> |\t)(\/[^ ]+) \(.*/\2/p'; }
put "$(readlink -f "$server")" "/usr/bin/$kind-server"
put "$(readlink -f "$cli")" "/usr/bin/$kind-cli"
for program in sh grep; do put "$(command -v $program)" /usr/bin/$program; done
for program in "$server" "$cli" "$(command -v sh)" "$(command -v grep)"; do libraries "$program"; done | sort -u |
  while read -r library; do put "$library"; done
# A Rust library needs it; the server itself may not.
put "$(cc -print-file-name=libgcc_s.so.1)" "/usr/lib/$(uname -m)-linux-gnu/libgcc_s.so.1"
mkdir -p "$fs/etc" "$fs/data" "$fs/tmp"
mkdir -p "$fs/bin" && cp "$fs/usr/bin/sh" "$fs/bin/sh"
printf 'root:x:0:0::/:/bin/sh\n%s:x:999:999::/data:/bin/sh\n' "$kind" >"$fs/etc/passwd"
printf 'root:x:0:\n%s:x:999:\n' "$kind" >"$fs/etc/group"
# The image's builder may be another user than the one in the image.
tar -C "$fs" --owner=999 --group=999 -c . | "${DOCKER:-docker}" import \
  --change 'ENV PATH=/usr/local/bin:/usr/bin:/bin' - "$name" >/dev/null
echo "$name: $("$server" --version)"
