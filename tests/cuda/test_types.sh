#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Weights of a type that the CUDA backend does not read are refused by name before anything is
# loaded, and the CPU reads them.
#
#     test_types.sh PIPIT_MKMODEL PIPIT_BENCH MODULE
set -eu

model=$(mktemp)
trap 'rm -f "$model" "$model.err"' EXIT
for type in Q2_K Q3_K; do
    "$1" --layers 2 --hidden 256 --ffn 256 --heads 4 --kv-heads 2 --vocab 300 --type "$type" \
        --embd-type f16 "$model"
    if "$2" --model "$model" --backend "$3" -p 16 -n 2 -r 1 --kv full --copy-bytes 1MiB \
        >/dev/null 2>"$model.err"; then
        echo "FAIL: the device read $type"
        exit 1
    fi
    if ! grep -q "weight is $type, which backend cuda does not read; backend cpu does" \
        "$model.err"; then
        echo "FAIL: $(cat "$model.err")"
        exit 1
    fi
    "$2" --model "$model" --backend cpu -p 16 -n 2 -r 1 --kv full --copy-bytes 1MiB >/dev/null
done
