#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tools/gpu_pack.sh and tools/gpu_check.sh without a GPU: what each call would run is in the build; the archive, made with
# the emulated module, is unpacked elsewhere, and its own script runs parts of calls 1, 2, 3 and 5 from there.
# Usage: test_gpu_check.sh TOOLS BUILD MODULE
set -uo pipefail
tools=$1
build=$2
module=$3
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() { echo "FAILED: $*" && exit 1; }

for call in 1 2 3 4 5; do
    "$tools/gpu_check.sh" --dry-run --build "$build" "$call" "$dir/dry" >>"$dir/dry.txt" || fail "dry run of call $call"
done
for name in check_attention check_matmul_own check_matmul_cublas golden_cache golden_cublas start_lazy qkv_store_repeated kbench kbench_own ncu_row_q \
    bench_llama-3.1-8b_BF16_b1_d128-2048-8192_full_fp8 bench_llama-3.1-8b_BF16_b1_d128_full_own \
    bench_llama-3.1-8b_Q4_K_b1_d128-2048_full bench_llama-3.1-8b_Q4_K_b1_d128_full_cublas memcheck_select racecheck_attention \
    bench_llama-3.1-8b-4_BF16_b8_d65536-131072_full_fp8 bench_llama-2-7b_BF16_b8_d8192_keyformer_50_ peers; do
    grep -q "^$name " "$dir/dry.txt" || fail "$name is not in the dry run"
done
grep -o "$build/[^ ]*" "$dir/dry.txt" | grep -v '\.so$' | sort -u | while read -r program; do
    [ -e "$program" ] || fail "$program is not there"
done || exit 1

XZ_OPT=-0 "$tools/gpu_pack.sh" --build "$build" --out "$dir/gpu.tar.xz" --with "$module" || fail "the archive"
tar -C "$dir" -xJf "$dir/gpu.tar.xz" || fail "unpacking"
run() { "$dir/gpu/tools/gpu_check.sh" --small --models "$dir/models" "$@" "$dir/out"; }
run --only check_rows 1 || fail "call 1: check_rows"
run --only daemon 1 || fail "call 1: daemon"
run --only start_lazy 1 || fail "call 1: start_lazy"
run --only 0.6b 3 || fail "call 3"
run --only b8_d8192_keyformer 5 || fail "call 5"
for call in 1 3 5; do
    tar -tzf "$dir/out/call-$call.tgz" | grep "call-$call/results.csv" >/dev/null || fail "results of call $call"
done
tar -xzOf "$dir/out/call-3.tgz" call-3/bench.csv | grep ',decode,16,1,' >/dev/null || fail "call 3 has no figures"
ls "$dir"/models/*.gguf 2>/dev/null && fail "models are left"
run --minutes 0 --only check_rows 1 >/dev/null
[ $? -eq 3 ] || fail "time is up at once: exit 3 is wanted"
run --backend "$dir/none.so" --only 0.6b 3 >/dev/null
[ $? -eq 1 ] || fail "no module: exit 1 is wanted"
echo "gpu_check: dry runs, archive, calls from the unpacked archive, time limit, missing module"
