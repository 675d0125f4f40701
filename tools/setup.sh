#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the Debian packages that building, testing and the demo need; nothing when all are there.
# Usage: tools/setup.sh [--demo | --package | --package-arm64 | --aarch64]
#   --demo: only what tools/demo.sh needs; --package: what deploy/build_deb.sh needs;
#   --aarch64: what building for AArch64 on x86-64 and running the result in an emulator needs;
#   --package-arm64: both, and the libraries of the daemon
set -euo pipefail

build=(gcc meson ninja-build pkg-config libzmq3-dev libprotobuf-c-dev protobuf-c-compiler
    protobuf-compiler libsystemd-dev libpcre2-dev libjansson-dev libssl-dev
    python3 python3-pip curl ca-certificates)
tests=(clang clang-format lld libclang-rt-14-dev libcriterion-dev python3-zmq python3-protobuf
    python3-numpy python3-cffi python3-venv jq valgrind procps git xz-utils)

package=(dpkg-dev debhelper fakeroot lintian git)

# Libraries that nothing can be built without; the daemon's are left out.
aarch64=(gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user libssl-dev:arm64 libpcre2-dev:arm64
    libjansson-dev:arm64)

# All of them, and what debhelper looks for when it cross-compiles.
package_arm64=("${package[@]}" "${aarch64[@]}" g++-aarch64-linux-gnu pkg-config:arm64 libzmq3-dev:arm64
    libprotobuf-c-dev:arm64 libsystemd-dev:arm64 libjansson-dev:arm64)

packages=("${build[@]}")
foreign=
case "${1:-}" in
--demo) ;;
--package) packages+=("${package[@]}") ;;
--package-arm64)
    packages+=("${package_arm64[@]}")
    foreign=arm64
    ;;
--aarch64)
    packages+=("${aarch64[@]}")
    foreign=arm64
    ;;
*) packages+=("${tests[@]}") ;;
esac

# A package may be there for several architectures: the machine's own counts where none is named.
native=$(dpkg --print-architecture 2>/dev/null || true)
missing=()
for p in "${packages[@]}"; do
    case $p in
    *:*) arch=${p##*:} ;;
    *) arch=$native ;;
    esac
    if ! dpkg-query -W -f '${Architecture} ${db:Status-Status}\n' "$p" 2>/dev/null |
        grep -Eqx "(all|$arch) installed"; then
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
# Libraries of another architecture: dpkg must know it, and forget it again if the mirror does not have it.
if [ -n "$foreign" ] && ! dpkg --print-foreign-architectures | grep -qx "$foreign"; then
    "${sudo[@]}" dpkg --add-architecture "$foreign"
    if ! "${sudo[@]}" apt-get update >"$log" 2>&1 || ! install; then
        tail -n 20 "$log" >&2
        "${sudo[@]}" dpkg --remove-architecture "$foreign" || true
        echo "setup: no packages of architecture $foreign here" >&2
        exit 1
    fi
    exit 0
fi
# The package lists may be absent or old: refresh them once before giving up.
if ! install; then
    "${sudo[@]}" apt-get update >>"$log" 2>&1 || true
    if ! install; then
        tail -n 20 "$log" >&2
        echo "setup: apt-get could not install: ${missing[*]}" >&2
        exit 1
    fi
fi
