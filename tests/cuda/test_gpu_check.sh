#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tools/gpu_check.sh without a GPU: what a dry run would do, and a real run of two kernel checks against the emulated
# module, stopped by its time limit and gone on with.
# Usage: test_gpu_check.sh GPU_CHECK BUILD MODULE
set -uo pipefail
script=$1
build=$2
module=$3
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() { echo "FAILED: $*" && exit 1; }

"$script" --dry-run --build "$build" "$dir/dry" >"$dir/dry.txt" || fail "dry run"
skewed=bench_llama-3.1-8b_BF16_skew_b1_d8192-32768_full_infinigen_share_15__infinigen_share_7_
eight=bench_llama-3.1-8b_BF16_skew_b1_d8192-32768_infinigen_share_7_
for name in check_attention memcheck_matmul racecheck_cut golden_cache kernel_bench_matmul \
    check_matmul_cublas golden_cublas bench_llama-3.1-8b_BF16_b1_d128_full_own bench_llama-3.1-8b_BF16_b1_d128_full_cublas \
    check_select bench_llama-3.1-8b_BF16_b1_d65536-131072_full_fp8 bench_sigma-10b_BF16_b1_d32768-65536_full \
    bench_llama-3.1-8b_BF16_swiftkv-16-16_b1_d128_full check_speculate memcheck_speculate \
    "${skewed}_infinigen_share_15__pool_host_infinigen_share_7__pool_host" \
    "${eight}_infinigen_share_7__partial8_on_infinigen_share_7__partial8_on_pool_host" plan_llama-2-7b_BF16_full \
    plan_llama-3.1-8b_BF16_full plan_llama-3.1-8b_BF16_swiftkv-16-16_fp8 serve_llama-3.1-8b_BF16_swiftkv-16-4_fp8_3GiB \
    bench_llama-3.1-8b-4_BF16_b8_d65536-131072_full_fp8 bench_llama-2-7b_BF16_b24_d8192_h2o_50_ \
    bench_llama-2-7b-4_BF16_b64_d128-4096_full_sparq_r_32_k_128_layout_2k bench_sigma-10b_BF16_b32_d512-4096_full \
    bench_sigma-10b-gqa16_BF16_b8_d2048-16384_full peers; do
    grep -q "^$name " "$dir/dry.txt" || fail "$name is not in the dry run"
done
for program in tests/kernels/check_rows tests/golden/test_stories bench/pipit-bench; do
    grep -q "$build/$program" "$dir/dry.txt" || fail "$program is not in the dry run"
    [ -x "$build/$program" ] || fail "$program is not there"
done
run() { "$script" --build "$build" --backend "$module" --parts check "$@" "$dir/out"; }
run --minutes 0 --only rows >/dev/null
[ $? -eq 3 ] || fail "time is up at once: exit 3 is wanted"
run --only rows >/dev/null || fail "check_rows"
run --only norm >/dev/null || fail "check_norm"
run --only rows >"$dir/again.txt" || fail "check_rows again"
grep -q check_rows "$dir/again.txt" && fail "check_rows ran twice"
[ "$(grep -c ',passed,' "$dir/out/results.csv")" -eq 2 ] || fail "results.csv: $(cat "$dir/out/results.csv")"
grep -q 'passed: 2' "$dir/out/report.txt" || fail "report.txt"
run --backend ./none.so --only kv_slots >/dev/null
grep -q 'check_kv_slots,skipped' "$dir/out/results.csv" || fail "no module: skipped is wanted"
echo "gpu_check: dry run, time limit, resumption, report"
