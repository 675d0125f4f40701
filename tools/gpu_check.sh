#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Everything that wants a GPU, in one command: kernel checks with and without compute-sanitizer, golden tests of whole
# models, benches. Each item has a time limit and is done once: run again with the same folder, it goes on where it
# stopped. Writes into the folder: results.csv (item, outcome, seconds), bench.csv, serve.csv, peers.csv, a log an item, report.txt.
#
# Usage: tools/gpu_check.sh [OPTION]... FOLDER
#   --build DIR     a build that is there (brought along); else FOLDER/build is made for this GPU
#   --minutes N     begin nothing later than this (default 25)
#   --parts LIST    of info,build,check,sanitize,golden,bench (default all)
#   --only TEXT     items whose name holds it
#   --backend NAME  default cuda; a module's path, to try the script without a GPU
#   --models DIR    where bench models are made (default FOLDER/models); .gguf files there are removed after use
#   --dry-run       print what would run
# Exit code: 0 all that ran passed, 1 some failed, 3 time was up before the end.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2

minutes=25
parts=info,build,check,sanitize,golden,bench
only=
backend=cuda
build=
models=
dry=
products=
while [ $# -gt 0 ]; do
    case $1 in
    --build) build=$2 && shift ;;
    --minutes) minutes=$2 && shift ;;
    --parts) parts=$2 && shift ;;
    --only) only=$2 && shift ;;
    --backend) backend=$2 && shift ;;
    --models) models=$2 && shift ;;
    --dry-run) dry=1 ;;
    -*)
        sed -n '3,17s/^# \{0,1\}//p' "$0"
        exit 2
        ;;
    *) break ;;
    esac
    shift
done
[ $# -eq 1 ] || {
    sed -n '3,17s/^# \{0,1\}//p' "$0"
    exit 2
}
out=$1
build=${build:-$out/build}
models=${models:-$out/models}
end=$((SECONDS + minutes * 60))
failed=0
late=0
mkdir -p "$out/done" "$out/log"

part() { [[ ,$parts, == *,$1,* ]]; }

# item NAME LIMIT COMMAND...: runs it unless done; 0 passed, 77 counts as skipped.
item() {
    local name=$1 limit=$2 began=$SECONDS rc outcome
    shift 2
    [[ -z $only || $name == *"$only"* ]] || return 0
    if [ -n "$dry" ]; then
        printf '%-40s %4s s  %s\n' "$name" "$limit" "$*"
        return 0
    fi
    [ ! -e "$out/done/$name" ] || return 0
    if [ "$SECONDS" -ge "$end" ]; then
        late=1
        return 1
    fi
    [ $((SECONDS + limit)) -le "$end" ] || limit=$((end - SECONDS))
    timeout -k 5 "$limit" "$@" >"$out/log/$name.log" 2>&1
    rc=$?
    case $rc in
    0) outcome=passed ;;
    77) outcome=skipped ;;
    124 | 137) outcome=timeout ;;
    *) outcome=failed ;;
    esac
    if [ "$outcome" = timeout ] && [ "$SECONDS" -ge "$end" ]; then
        late=1 # the whole run's end, not the item's own limit: to be tried again
        return 1
    fi
    echo "$name,$outcome,$((SECONDS - began))" >>"$out/results.csv"
    [ "$outcome" = timeout ] || touch "$out/done/$name"
    printf '%-40s %s (%d s)\n' "$name" "$outcome" $((SECONDS - began))
    if [ "$outcome" = failed ] || [ "$outcome" = timeout ]; then
        failed=1
        tail -n 5 "$out/log/$name.log" | cut -c1-200
        return 1
    fi
    return 0
}

info() {
    nvidia-smi --query-gpu=name,compute_cap,driver_version,memory.total,clocks.max.sm,clocks.max.mem \
        --format=csv || true
    nvcc --version 2>/dev/null | tail -n 2
    uname -srm
    git rev-parse --short HEAD 2>/dev/null
    true
}

# The module for this GPU alone.
make_build() {
    local arch
    arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d .)
    [ -n "$arch" ] || { echo "no GPU to build for" && return 1; }
    meson setup "$build" --buildtype=release -Dcuda=enabled -Dgpu_archs="$arch" && ninja -C "$build"
}

# model NAME SHAPE TYPE [MKMODEL OPTION...]: what bench and serve time until `drop_model`.
model() {
    name=$1 shape=$2 type=$3 file=$models/$1.gguf overlay=
    shape_options=("${@:4}")
}

# The model's file, made when the first item wants it; and its overlay: SwiftKV (layer, group) or a skew.
make_model() {
    mkdir -p "$models"
    [ -e "$file" ] || timeout 240 "$build/tools/pipit-mkmodel" --shape "$shape" "${shape_options[@]}" --type "$type" "$file" \
        >"$out/log/mkmodel_$name.log" 2>&1 || return 1
    local kind=(--skew)
    [[ $overlay != swiftkv-* ]] || kind=(--swiftkv "$(cut -d- -f2 <<<"$overlay")" --group "$(cut -d- -f3 <<<"${overlay%.gguf}")")
    [ -z "$overlay" ] || [ -e "$models/$overlay" ] || timeout 120 "$build/tools/pipit-mkmodel" --base "$file" \
        "${kind[@]}" "$models/$overlay" >"$out/log/mkmodel_$overlay.log" 2>&1
}

drop_model() {
    [ -n "$dry" ] || rm -f "$models"/*.gguf
}

# The model is there for the item of that name, or the item is left out.
ready() {
    if [ -z "$dry" ] && [ ! -e "$out/done/$1" ]; then
        [ "$SECONDS" -lt "$end" ] || { late=1 && return 1; }
        make_model || { echo "mkmodel $name failed" && failed=1 && return 1; }
    fi
}

# The item's CSV into the whole's.
collect() {
    [ -n "$dry" ] || [ ! -e "$out/log/$1.log" ] || grep -q "^$1," "$out/$2" 2>/dev/null ||
        sed "s/^/$1,/" "$out/log/$1.log" >>"$out/$2"
}

# bench BATCH PREFILL DEPTHS POLICIES...: each argument of policies (blanks between) is timed in one process, alternating.
# products=own or cublas before it: what multiplies prompts by 16-bit weights (else as the daemon does by itself).
bench() {
    local batch=$1 prefill=$2 depths=$3 group id policy arguments
    shift 3
    for group in "$@"; do
        id=bench_${name}${overlay:+_${overlay%.gguf}}_b${batch}_d${depths//[^0-9]/-}_${group//[^a-z0-9]/_}${products:+_$products}
        [[ -z $only || $id == *"$only"* ]] || continue
        arguments=()
        for policy in $group; do
            arguments+=(--kv "$policy")
        done
        [ -z "$overlay" ] || arguments+=(--overlay "$models/$overlay")
        [[ $overlay != swiftkv-* ]] || arguments+=(--plain)
        ready "$id" || continue
        item "$id" 240 "$build/bench/pipit-bench" --model "$file" --backend "$backend" "${arguments[@]}" \
            --batch "$batch" --prefill "$prefill" --depth "$depths" --products "${products:-auto}" --header || continue
        collect "$id" bench.csv
    done
}

# serve POLICY KV_MEMORY...: 128 prompts of 2048 tokens and answers of 256, all there at once, in that much memory for keys and values.
serve() {
    local policy=$1 memory id arguments
    shift
    for memory in "$@"; do
        id=serve_${name}${overlay:+_${overlay%.gguf}}_${policy//[^a-z0-9]/_}_$memory
        [[ -z $only || $id == *"$only"* ]] || continue
        arguments=()
        [ -z "$overlay" ] || arguments+=(--overlay "$models/$overlay")
        ready "$id" || continue
        item "$id" 120 "$build/bench/pipit-bench" --model "$file" --backend "$backend" --kv "$policy" "${arguments[@]}" \
            --arrivals 0 --kv-memory "$memory" --requests 128 --prompt 2048 --answer 256 --ctx 2304 --header || continue
        collect "$id" serve.csv
    done
}

# plan CTX POLICY: how many sequences fit.
plan() {
    local id=plan_${name}${overlay:+_${overlay%.gguf}}_${2//[^a-z0-9]/_} arguments=()
    [[ -z $only || $id == *"$only"* ]] || return 0
    [ -z "$overlay" ] || arguments+=(--overlay "$models/$overlay")
    ready "$id" || return 0
    item "$id" 60 "$build/daemon/front/pipitd" plan --model "$file" "${arguments[@]}" --backend "$backend" --ctx "$1" --kv "$2" --json
}

checks=(rows norm kv_slots matmul rope_store qkv_store cut attention select speculate)

if part info && [ -z "$dry" ]; then
    info >"$out/info.txt" 2>&1
fi
if part build && [ ! -x "$build/tests/kernels/check_rows" ]; then
    if [ -n "$dry" ]; then
        echo "build into $build"
    elif ! make_build >"$out/log/build.log" 2>&1; then
        echo "no build: $(tail -n 1 "$out/log/build.log")"
        exit 1
    fi
fi

if part check; then
    for c in "${checks[@]}"; do
        item "check_$c" 180 "$build/tests/kernels/check_$c" --backend "$backend" --sides 2
    done
    # the row above took cublasLt if the machine has it: both by name (cublas: skipped where it is not)
    for products in own cublas; do
        item "check_matmul_$products" 180 "$build/tests/kernels/check_matmul" --backend "$backend" --sides 2 \
            --filter F16 --prefill "$products"
    done
    products=
fi

# compute-sanitizer works on some machines only: the smallest check first.
if part sanitize; then
    sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
    if [ -z "$sanitizer" ] && [ -z "$dry" ]; then
        echo "compute-sanitizer is not installed"
    elif item sanitize_try 120 "${sanitizer:-compute-sanitizer}" --error-exitcode 9 \
        "$build/tests/kernels/check_rows" --backend "$backend" --sides 2; then
        for c in norm kv_slots cut rope_store qkv_store matmul attention select speculate; do
            item "memcheck_$c" 240 "${sanitizer:-compute-sanitizer}" --error-exitcode 9 \
                "$build/tests/kernels/check_$c" --backend "$backend" --sides 2
        done
        for c in norm cut; do
            item "racecheck_$c" 240 "${sanitizer:-compute-sanitizer}" --tool racecheck --error-exitcode 9 \
                "$build/tests/kernels/check_$c" --backend "$backend" --sides 2
        done
    else
        echo "compute-sanitizer does not work here: no memcheck, no racecheck"
    fi
fi

if part golden; then
    for g in stories cache arch; do
        item "golden_$g" 180 "$build/tests/golden/test_$g" tests/data "$backend"
    done
    # own tiles and this machine's cublasLt: nearly the same logits, each the same to the bit in chunks of any length
    item golden_cublas 180 "$build/tests/cuda/test_cuda_lt_model" "$backend" - tests/data/stories260K.ids \
        "$build/tests/cuda/stories_bf16.gguf" "$build/tests/cuda/stories_f16.gguf"
fi

if part bench; then
    for c in matmul attention select speculate rope_store; do
        item "kernel_bench_$c" 180 "$build/tests/kernels/check_$c" --backend "$backend" --bench
    done
    # A line for each aim, the shortest first. Shares are of the copy rate measured in the same call.
    model llama-3.2-1b_BF16 llama-3.2-1b BF16
    bench 1 16,512 128,2048 "full fp8" # decode 80 %; TTFT of 16 tokens
    drop_model
    model qwen3-0.6b_BF16 qwen3-0.6b BF16
    bench 1 512 128,2048 "full fp8" # decode 65 %
    drop_model
    model llama-3.1-8b_BF16 llama-3.1-8b BF16
    bench 1 512 128,2048,8192 "full fp8" # decode 90 %; FP8 ahead from 2k on
    # prefill 70 % of the matrix rate (peers.csv): own tiles beside cublasLt, which the daemon takes where it is
    for products in own cublas; do
        bench 1 16,512,2048,8192 128 full
    done
    products=
    bench 1 512 65536,131072 "full fp8"  # attention 88 / 82 %, slope of FP8 53 %
    bench 1 512 8192 "full fp8+keyformer:50% fp8+window:1024"
    # throughput where the whole may be 40 and 20 GB (SwiftKV's table 5); weights are 16 of them
    plan 8192 full
    serve full 20GiB 3GiB
    overlay=swiftkv-16-1.gguf
    bench 1 8192 128 full # SwiftKV 0.54x
    serve full 20GiB 3GiB
    overlay=swiftkv-16-16.gguf
    bench 1 8192 128 full # 0.52x with one group of 16
    plan 8192 fp8 # with full's: 3.6x the sequences
    serve fp8 20GiB 3GiB
    overlay=swiftkv-16-4.gguf
    serve fp8 20GiB 3GiB # the paper's last column
    overlay=skew.gguf
    bench 1 512 8192,32768 "full infinigen:share=15% infinigen:share=7% infinigen:share=15%,pool=host infinigen:share=7%,pool=host" # host pool: 15 % at 8k, 7 % at 32k
    bench 1 512 8192,32768 "infinigen:share=7% infinigen:share=7%,partial8=on infinigen:share=7%,partial8=on,pool=host" # partial keys in FP8
    drop_model
    model llama-3.1-8b-4_BF16 llama-3.1-8b BF16 --layers 4
    bench 8 512 65536,131072 "full fp8" # attention's slope at batch 8: 90 / 90 %
    drop_model
    model llama-3.1-8b_Q8_0 llama-3.1-8b Q8_0
    bench 1 512 128,2048 full # decode 88 %
    drop_model
    model llama-3.1-8b_Q4_K llama-3.1-8b Q4_K
    bench 1 512 128,2048 full # decode 80 %
    drop_model
    model llama-2-7b_BF16 llama-2-7b BF16
    bench 24 512 8192 full keyformer:50% h2o:50%               # 1.53x of 1.80x; a process each: two do not fit
    bench 8 512 4096 "full sparq:r=32,k=128,layout=2k topv:128" # SparQ end to end
    bench 1 512 4096 "full sparq:r=32,k=128,layout=2k"
    for policy in full keyformer:50%; do # the largest batch in the same memory: 1.7x
        plan 8192 "$policy"
    done
    drop_model
    model llama-2-7b-4_BF16 llama-2-7b BF16 --layers 4
    bench 64 512 128,4096 "full sparq:r=32,k=128,layout=2k" # 4.2x of what depth 4096 costs more than 128
    drop_model
    # DiffQKV's slope, and where lines through these depths cross; GQA-16 has the same heads and no augmented Q
    model sigma-10b_BF16 sigma-10b BF16
    bench 1 512 32768,65536 full
    bench 8 512 2048,16384 full
    bench 32 512 512,4096 full
    drop_model
    model sigma-10b-gqa16_BF16 sigma-10b BF16 --k-heads 16 --v-heads 16 --aug-q 0
    bench 1 512 32768,65536 full
    bench 8 512 2048,16384 full
    bench 32 512 512,4096 full
    drop_model
    for shape in qwen3-4b qwen3-8b; do
        model ${shape}_Q4_K $shape Q4_K
        bench 1 512 128,2048 full
        drop_model
    done
    item peers 300 python3 tools/gpu_peers.py "$out/peers.csv"
fi

[ -n "$dry" ] && exit 0
{
    cat "$out/info.txt" 2>/dev/null
    echo
    [ -e "$out/results.csv" ] && awk -F, '{n[$2]++} END {for (o in n) print o ": " n[o]}' "$out/results.csv"
    grep -E ',(failed|timeout),' "$out/results.csv" 2>/dev/null
    [ "$late" -eq 0 ] || echo "time was up: run again with the same folder for the rest"
    echo
    [ ! -e "$out/bench.csv" ] || cat "$out/bench.csv"
    [ ! -e "$out/serve.csv" ] || cat "$out/serve.csv"
    [ ! -e "$out/peers.csv" ] || cat "$out/peers.csv"
    for log in "$out"/log/plan_*.log; do
        [ ! -e "$log" ] || echo "$(basename "$log" .log): $(grep -o '"max_sequences": [0-9]*' "$log")"
    done
} >"$out/report.txt"
echo "report: $out/report.txt"
[ "$failed" -eq 0 ] || exit 1
[ "$late" -eq 0 ] || exit 3
