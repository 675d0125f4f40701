#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# That every fence between blocks in kernels/cuda/ is needed, and that the emulator would notice its
# loss: each one, and the barriers round it, is taken out of the order in turn (EMU_WITHOUT, see
# emu/order.cc), and a check of the kernel must then end with the cause.
#
#     test_order.sh MODULE SOURCES CHECK_QKV_STORE CHECK_SAMPLE     (SOURCES: kernels/cuda)
set -euo pipefail

module=$1 sources=$2 check_qkv_store=$3 check_sample=$4
n=0
failed=0

# Runs the check of a file's fences.
check() {
    case $1 in
    gemm_half.cuh) "$check_qkv_store" --backend "$module" --sides 2 --filter 'BF16 BF16 BF16' ;;
    gemm_heads.cuh) "$check_qkv_store" --backend "$module" --sides 2 --filter 'Q4_0 Q4_0 Q4_0' ;;
    sample.cu) "$check_sample" "$module" 1 20000 ;;
    *) echo "no check has the fences of $1" ;;
    esac
}

# Lines with a barrier or a fence, of fences and of the barriers next to them.
sites() {
    awk '/__syncthreads\(\);/ { if (after) { print FNR; after = 0 } barrier = FNR }
         /__threadfence\(\);/ { if (barrier) { print barrier; barrier = 0 } print FNR; after = 1 }' "$1"
}

while read -r file; do
    for line in $(sites "$file"); do
        name=$(basename "$file")
        said=$(EMU_WITHOUT=$name:$line check "$name" 2>&1) || true
        n=$((n + 1))
        if [[ $said != *'in no order'* ]]; then
            echo "FAILED: without $name:$line: ${said##*$'\n'}"
            failed=1
        fi
    done
done < <(grep -lE '__threadfence\(\);' "$sources"/*.cu "$sources"/*.cuh)
echo "$n fences and barriers taken out"
[ $n -gt 0 ] && [ $failed = 0 ]
