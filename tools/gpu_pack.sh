#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# One archive of what tools/gpu_check.sh needs on a machine that has a GPU, a driver and no compiler: the CUDA module for
# its architecture, stripped programs and checks, the libraries that they need beside the C library, test data, scripts.
#
# Usage: tools/gpu_pack.sh [--arch LIST] [--build DIR] [--out FILE] [--with MODULE]
#   --arch LIST     as in 90 or 90,100 (default 90)
#   --build DIR     build folder, made if it is not there (default build-gpu)
#   --out FILE      default DIR/gpu.tar.xz
#   --with MODULE   this module and programs as DIR has them, of any size: to try the archive without a GPU
# There: tar -xJf gpu.tar.xz && gpu/tools/gpu_check.sh 1 results (without xz: python3 -m tarfile -e gpu.tar.xz)
set -euo pipefail
cd "$(dirname "$0")/.."

most=$((40 * 1000 * 1000))
arch=90 build=build-gpu out='' with=''
while [ $# -gt 0 ]; do
    case $1 in
    --arch) arch=$2 ;;
    --build) build=$2 ;;
    --out) out=$2 ;;
    --with) with=$2 ;;
    *) sed -n '3,13s/^# \{0,1\}//p' "$0" && exit 2 ;;
    esac
    shift 2
done
out=${out:-$build/gpu.tar.xz}

programs=(bench/pipit-bench bench/pipit-kbench tools/pipit-mkmodel tests/cuda/check_sample tests/cuda/test_async_step
    tests/cuda/test_company tests/cuda/test_cuda_lt_model daemon/front/pipitd daemon/worker/pipit-engine client/pipit)
for c in rows norm kv_slots matmul rope_store qkv_store cut expect attention select predict experts recur; do
    programs+=("tests/kernels/check_$c")
done
for g in stories cache arch; do
    programs+=("tests/golden/test_$g")
done
models=(tests/cuda/codes.gguf tests/cuda/stories_bf16.gguf tests/cuda/stories_f16.gguf tests/cuda/stories_q8_0.gguf)

[ -e "$build/build.ninja" ] || meson setup "$build" --buildtype=release -Dgpu_archs="$arch" >/dev/null
module=$with
if [ -z "$with" ]; then
    meson configure "$build" -Dgpu_archs="$arch"
    module=$build/kernels/cuda/libpipit-cuda.so
    ninja -C "$build" kernels/cuda/libpipit-cuda.so >/dev/null
    ninja -C "$build" "${programs[@]}" "${models[@]}" >/dev/null
fi

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
top=$stage/gpu
mkdir -p "$top/lib" "$top/tests" "$top/tools" "$top/kernels/cuda"
for f in "${programs[@]}"; do
    install -D "$build/$f" "$top/$f"
    strip "$top/$f"
done
install "$build/client/libpipit.so.0" "$top/client/"
for f in "${models[@]}"; do
    install -D -m 644 "$build/$f" "$top/$f"
done
install "$module" "$top/kernels/cuda/libpipit-cuda.so"
strip --strip-unneeded "$top/kernels/cuda/libpipit-cuda.so"
cp -r tests/data "$top/tests/"
cp tools/gpu_check.sh tools/gpu_peers.py "$top/tools/"

# All that is linked but the C library, which every machine has and which must be of its own driver's age.
for f in "${programs[@]/#/$top/}" "$top/kernels/cuda/libpipit-cuda.so"; do
    ldd "$f"
done | awk '$2 == "=>" && $3 ~ /^\// {print $3}' | sort -u |
    grep -vE '/(ld-linux[^/]*|lib(c|m|dl|rt|pthread)\.so[^/]*)$' | while read -r lib; do
    cp -L "$lib" "$top/lib/"
done
for want in libcrypto libpcre2-8; do
    ls "$top/lib/$want".so* >/dev/null || { echo "gpu_pack: $want is not among the libraries" && exit 1; }
done
{
    echo "pipit $(git rev-parse --short HEAD 2>/dev/null || echo '(no git)'), sm_$arch${with:+, module $(basename "$with")}"
    nvcc --version 2>/dev/null | tail -n 1
    ldd --version | sed -n 1p
} >"$top/packed.txt"
tar -C "$stage" -c gpu | xz "${XZ_OPT--9}" >"$out" # one long window: programs share most of their code
bytes=$(stat -c %s "$out")
echo "$out: $bytes bytes"
[ -n "$with" ] || [ "$bytes" -le "$most" ] || { echo "gpu_pack: more than $most bytes" && exit 1; }
