#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# pipit-kbench --small on the emulated module: every figure that the list below names is printed, with a time; and no figure is
# there that the list does not know, so that a new one comes here too.
# Usage: test_kbench.sh PIPIT_KBENCH MODULE
set -uo pipefail
kbench=$1
module=$2
out=$(mktemp)
trap 'rm -f "$out" "$out".*' EXIT
fail() { echo "FAILED: $*" && exit 1; }

each() { # each PATTERN WORD...: the pattern with each word in the place of @
    local pattern=$1 word
    shift
    for word in "$@"; do
        echo "${pattern//@/$word}"
    done
}

usual=(Q8_0 Q4_0 Q4_K Q6_K)
others=(Q4_1 Q5_0 Q5_1 Q2_K Q3_K Q5_K IQ4_NL IQ4_XS MXFP4)
wanted() {
    echo read
    echo copy
    each "launch, @ edge" plain programmatic
    each "launch alone: @" bench_empty "an event alone"
    each "node, host, @" unchanged changed
    each "sample @, 1 rows of 2048" greedy "top_k 40" all "all, flat"
    each "sample @, 8 rows of 2048" greedy "top_k 40" all "all, flat"
    for type in BF16 F16 "${usual[@]}"; do
        each "gemv $type small gate (128 x 256), @ rows" 1 8 32 16 64
        each "prefill $type small gate (128 x 256), @ rows" 16 32
        each "gemv $type small down (64 x 512), @ rows" 1 8 32
    done
    for type in BF16 F16; do
        each "gemv $type as a prompt small gate (128 x 256), @ rows" 16 32 64
    done
    for type in "${usual[@]}"; do
        each "gemv $type by stream small gate (128 x 256), @ rows" 16 32 64
        echo "gemv $type by few small gate (128 x 256), 8 rows"
        echo "prefill unpack $type small gate (128 x 256)"
    done
    for type in "${others[@]}"; do
        each "gemv $type small gate (128 x 256), @ rows" 1 8 32
    done
    for shape in "Q4_K (2 of 16, 256 x 256)" "MXFP4 (2 of 8, 64 x 96)"; do
        for rows in 1 8; do
            echo "experts $shape, $rows rows"
            each "experts $shape, $rows rows: @" choose_experts experts_q combine_experts prepare_rows rows_f32
        done
    done
    for type in f16 bf16 fp8 i8 kv4 k8v4; do
        each "attention $type, depth 70, batch @" 1 2
        each "attention $type, prompt@" ", rows 64 to 72" " observed, rows 0 to 8"
    done
    each "attention f16, expected, @" "slots 70" "rows 8"
    for heads in 64 256; do
        for type in bf16 fp8; do
            each "attention $type, heads of $heads, @" "depth 70, batch 2" "prompt, rows 64 to 72"
        done
    done
    echo "attention f16, sparq, sums of V, depth 300"
    for policy in sparq topv; do
        echo "attention f16, $policy, depth 300, batch 2"
        each "attention f16, $policy, depth 300, batch 2: @" rank sum_heads choose attend_chosen
    done
    echo "attention f16, infinigen, depth 300, batch 2"
    each "attention f16, infinigen, depth 300, batch 2: @" skew_queries rank_predicted sum_predicted predict attend_chosen
}

"$kbench" --small --module "$module" >"$out" || fail "pipit-kbench: exit $?"
head -n 1 "$out" | grep -qx 'figure,us,bytes,gb_s,share,tera_ops' || fail "the head is $(head -n 1 "$out")"
sed -n 's/^"\([^"]*\)",[0-9.]*,.*/\1/p' "$out" | sort >"$out.have"
wanted | sort >"$out.want"
uniq -d "$out.have" | grep . && fail "figures that are there twice"
diff "$out.want" "$out.have" || fail "< is missing, > is not in the list of this test"
[ $(($(wc -l <"$out") - 1)) -eq "$(wc -l <"$out.have")" ] || fail "lines that are no figures"
echo "kbench: $(wc -l <"$out.have") figures"
