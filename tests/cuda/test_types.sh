#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Models in the types of fewest bits, embedding and head too, are loaded and run by the CUDA backend
# and by the CPU's.
#
#     test_types.sh PIPIT_MKMODEL PIPIT_BENCH MODULE
set -eu

model=$(mktemp)
trap 'rm -f "$model"' EXIT
for type in Q2_K Q3_K; do
    "$1" --layers 2 --hidden 256 --ffn 256 --heads 4 --kv-heads 2 --vocab 300 --type "$type" \
        --embd-type "$type" "$model"
    for backend in "$3" cpu; do
        "$2" --model "$model" --backend "$backend" -p 16 -n 2 -r 1 --kv full --copy-bytes 1MiB \
            >/dev/null
    done
done
