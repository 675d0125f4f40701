#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the Debian packages of this tree and checks them with lintian: pipit, pipit-tools, libpipit0,
# libpipit-dev, python3-pipit. Prints their paths.
# Usage: deploy/build_deb.sh [--arch ARCH] [FOLDER]
#   FOLDER: where they go, default build-deb, or build-deb-ARCH
#   --arch arm64: packages for that architecture, cross-compiled (python3-pipit is for all, and left out)
set -euo pipefail
cd "$(dirname "$0")/.."

native=$(dpkg --print-architecture)
arch=$native
if [ "${1:-}" = --arch ]; then
    arch=${2:?an architecture}
    shift 2
fi
case $arch in
"$native")
    out=build-deb
    tools/setup.sh --package
    how=(--build=binary)
    ;;
arm64)
    out=build-deb-$arch
    tools/setup.sh --package-arm64
    how=(--build=any --host-arch "$arch")
    ;;
*)
    echo "build_deb: this machine makes packages for $native and arm64, not for $arch" >&2
    exit 2
    ;;
esac
out=$(realpath -m "${1:-$out}")

version=$(sed -n "s/^ *version: '\([^']*\)',.*/\1/p" meson.build | head -n 1)
if [ -z "${SOURCE_DATE_EPOCH:-}" ]; then
    SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || date +%s)
fi
export SOURCE_DATE_EPOCH DEB_BUILD_OPTIONS=${DEB_BUILD_OPTIONS:-noautodbgsym}
mkdir -p "$out"
rm -f "$out"/*.deb "$out"/*.buildinfo "$out"/*.changes
# Always the same place, so that a compiler cache knows it again.
work=$out/work
rm -rf "$work"
trap 'rm -rf "$work"' EXIT
source=$work/pipit-$version
mkdir -p "$source"

# What belongs to the tree: of a clone what git would take, else everything but build folders.
if git rev-parse --git-dir >/dev/null 2>&1; then
    git ls-files -z -co --exclude-standard | xargs -0 -I{} sh -c 'test -e "$1" && printf "%s\0" "$1"' _ {} |
        tar -c --null -T - | tar -x -C "$source"
else
    tar -c --exclude='./build*' . | tar -x -C "$source"
fi
cp -r deploy/debian "$source/debian"
cat >"$source/debian/changelog" <<END
pipit ($version) unstable; urgency=medium

  * Packages of this version of the source.

 -- pipit maintainers <pipit@packages.debian.org>  $(date -u -R -d "@$SOURCE_DATE_EPOCH")
END
mkdir -p "$source/debian/source"
echo "3.0 (native)" >"$source/debian/source/format"

log=$out/build.log
if ! (cd "$source" && dpkg-buildpackage "${how[@]}" --unsigned-source --unsigned-changes \
    --jobs="${PIPIT_JOBS:-$(nproc)}") >"$log" 2>&1; then
    tail -n 40 "$log" >&2
    echo "build_deb: failed; the whole log is $log" >&2
    exit 1
fi
mv "$work"/*.deb "$work"/*.changes "$work"/*.buildinfo "$out"

lintian --fail-on error --tag-display-limit 0 "$out"/pipit_*.changes | tee "$out/lintian.log" >&2
ls "$out"/*.deb
