#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# That the emulator finds blocks which depend on each other in an order that nothing makes: small
# kernels (emu/cases.cc), each wrong in one way, must end their process with the cause, and the
# right ones must run. And that every fence between blocks in kernels/cuda/ is needed, and that the emulator would notice its
# loss: each one, and the barriers round it, is taken out of the order in turn (EMU_WITHOUT, see
# emu/order.cc), and a check of the kernel must then end with the cause.
#
#     test_order.sh MODULE SOURCES CHECK_QKV_STORE CHECK_SAMPLE     (SOURCES: kernels/cuda)
set -euo pipefail

module=$1 sources=$2 check_qkv_store=$3 check_sample=$4
n=0
failed=0

# What the process that runs a case says, or "right".
cases=(
    right                      # parts, a barrier, a fence, a count, a fence, a barrier, all parts
    'in no order'              # without the first barrier
    'in no order'              # without the first fence
    'in no order'              # without the second fence
    'in no order'              # without the second barrier
    'in no order'              # each thread fences before the barrier, another one counts
    'in no order'              # a write between the fence and the count
    'in no order'              # a count that is not atomic
    'in no order'              # the next block's part
    'in no order'              # one word by all blocks
    right                      # four blocks at once, each with its shared memory
    right                      # a kernel that begins early and waits
    'before it waits'          # one that reads first
    right                      # a limit of shared memory lowered behind a launch fails that launch
    'the step has written'     # one that says it reads ahead, and reads what the kernel ahead wrote
    right                      # one that reads ahead what no kernel of the step writes
    right                      # a branch of a graph that shares nothing with what runs beside it
    'at the same time'         # one whose result is read beside it
    'at the same time'         # one whose source is written beside it
    right                      # the same three on a second stream
    'at the same time'
    'at the same time'
)
for i in "${!cases[@]}"; do
    for seed in 1 2; do
        said=$(EMU_SEED=$seed python3 -c 'import ctypes, sys
print("right" if ctypes.CDLL(sys.argv[1]).emu_case(int(sys.argv[2])) == 1 else "wrong")' \
            "$module" "$i" 2>&1) || true
        if [[ $said != *"${cases[i]}"* ]]; then
            echo "FAILED: case $i, seed $seed, not '${cases[i]}': $said"
            failed=1
        fi
    done
done

# Runs the check of a file's fences.
check() {
    case $1 in
    gemm_half.cuh) "$check_qkv_store" --backend "$module" --sides 2 --filter 'BF16 BF16 BF16' ;;
    gemm_heads.cuh) "$check_qkv_store" --backend "$module" --sides 2 --filter 'Q4_0 Q4_0 Q4_0' ;;
    sample.cuh) "$check_sample" "$module" 1 20000 ;;
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
