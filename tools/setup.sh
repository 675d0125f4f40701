#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the Debian packages that building, testing and the demo need; nothing when all are there.
# Usage: tools/setup.sh [--demo | --package]
#   --demo: only what tools/demo.sh needs; --package: what deploy/build_deb.sh needs
set -euo pipefail

build=(gcc meson ninja-build pkg-config libzmq3-dev libprotobuf-c-dev protobuf-c-compiler
    protobuf-compiler libsystemd-dev libpcre2-dev libjansson-dev libssl-dev
    python3 python3-pip curl ca-certificates)
tests=(clang clang-format libclang-rt-14-dev libcriterion-dev python3-zmq python3-protobuf
    python3-numpy python3-cffi python3-venv jq valgrind procps git)

package=(dpkg-dev debhelper fakeroot lintian git)

packages=("${build[@]}")
case "${1:-}" in
--demo) ;;
--package) packages+=("${package[@]}") ;;
*) packages+=("${tests[@]}") ;;
esac

missing=()
for p in "${packages[@]}"; do
    if [ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null)" != installed ]; then
        missing+=("$p")
    fi
done
if [ ${#missing[@]} -eq 0 ]; then
    exit 0
fi

if ! command -v apt-get >/dev/null; then
    echo "setup: this is no Debian or Ubuntu system; please install the equivalents of: ${missing[*]}" >&2
    exit 1
fi
sudo=()
if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
        echo "setup: not root and no sudo; please have installed: ${missing[*]}" >&2
        exit 1
    fi
    sudo=(sudo)
fi
echo "setup: installing ${missing[*]}" >&2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
install() {
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        "${missing[@]}" >"$log" 2>&1
}
# The package lists may be absent or old: refresh them once before giving up.
if ! install; then
    "${sudo[@]}" apt-get update >>"$log" 2>&1 || true
    if ! install; then
        tail -n 20 "$log" >&2
        echo "setup: apt-get could not install: ${missing[*]}" >&2
        exit 1
    fi
fi
