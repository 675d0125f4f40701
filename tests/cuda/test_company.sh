#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# test_company with models of several types: rows of whole units and others, biases, norms behind
# products, another type for V.
#
#     test_company.sh PIPIT_MKMODEL TEST_COMPANY MODULE [one]     (one: the first model alone)
#
# With PIPIT_PHASE the first and one of the others, another one with the next number.
set -eu

model=$(mktemp)
trap 'rm -f "$model"' EXIT
try() {
    echo "$*"
    "$mkmodel" --layers 2 --heads 4 --kv-heads 2 --vocab 300 "$@" "$model"
    "$test" "$module" "$model"
}
mkmodel=$1
test=$2
module=$3
try --hidden 256 --ffn 512 --type Q4_K
[ $# -eq 3 ] || exit 0
turn=${PIPIT_PHASE:+$((PIPIT_PHASE % 2))}
[ "$turn" = 0 ] || try --hidden 288 --ffn 352 --type Q8_0 --arch qwen2
[ "$turn" = 1 ] || try --hidden 256 --ffn 256 --type Q6_K --arch gemma3
