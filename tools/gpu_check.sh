#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What wants a GPU, as five calls of at most nine minutes. Each is complete in itself: it makes the models it needs, and
# leaves one archive of results, FOLDER/call-N.tgz (results.csv: item, outcome, seconds; a log an item; CSV of the benches).
#
#   1  is it right?     device, libraries, kernel checks, goldens, stores repeated, time and memory of a start
#   2  kernels          pipit-kbench; ncu of three kernels where it is installed
#   3  steps            pipit-bench: 0.6B, 1B, 8B in three types, by depth; prompts; time to the first token
#   4  sanitizers       compute-sanitizer: memcheck, racecheck (after call 1 if that fails)
#   5  long and wide    long contexts, batches, policies, other programs on the same device
#
# Usage: tools/gpu_check.sh [OPTION]... CALL FOLDER
#   --build DIR     programs and module (default: this folder's top in an archive of tools/gpu_pack.sh, else build)
#   --minutes N     begin nothing later (default 9); what is begun is cut off then
#   --only TEXT     items whose name holds it
#   --backend FILE  the module (default: DIR/kernels/cuda/libpipit-cuda.so)
#   --models DIR    where models are made (default: /dev/shm or /tmp, which has more room); removed after use
#   --small         a small model and few cases: to try the script on an emulated module
#   --dry-run       print what would run
# Exit code: 0 all that ran passed, 1 some failed, 3 time was up before the end.
set -uo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)

usage() { sed -n '3,22s/^# \{0,1\}//p' "$0" && exit 2; }

minutes=9 only='' backend='' build='' models='' dry='' small='' overlay=''
while [ $# -gt 0 ]; do
    case $1 in
    --build) build=$2 && shift ;;
    --minutes) minutes=$2 && shift ;;
    --only) only=$2 && shift ;;
    --backend) backend=$2 && shift ;;
    --models) models=$2 && shift ;;
    --small) small=1 ;;
    --dry-run) dry=1 ;;
    -*) usage ;;
    *) break ;;
    esac
    shift
done
[ $# -eq 2 ] && [[ $1 =~ ^[1-5]$ ]] || usage
call=$1
if [ -z "$build" ]; then
    build=$here/build
    [ ! -x "$here/tests/kernels/check_rows" ] || build=$here
fi
backend=${backend:-$build/kernels/cuda/libpipit-cuda.so}
data=$here/tests/data
roomy() {
    local dir
    for dir in /dev/shm "${TMPDIR:-/tmp}"; do
        [ ! -d "$dir" ] || echo "$(df --output=avail "$dir" | tail -n 1) $dir"
    done | sort -rn | awk 'NR==1 {print $2}'
}
own_models=
[ -n "$models" ] || { models=$(roomy)/pipit-models-$$ && own_models=1; }
mkdir -p "$2" || exit 2
out=$(cd "$2" && pwd)/call-$call
rm -rf "$out" && mkdir -p "$out/log"
end=$((SECONDS + minutes * 60))

# Libraries that came along, those only that this machine lacks.
lend_libraries() {
    local lib
    [ -d "$build/lib" ] || return 0
    mkdir -p "$out/lib"
    for lib in "$build"/lib/*; do
        ldconfig -p 2>/dev/null | grep -q "^[[:space:]]*$(basename "$lib") " || ln -sf "$lib" "$out/lib/"
    done
    export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$out/lib
}

# cublasLt is often there as a Python package only.
find_cublas() {
    local lib
    ldconfig -p 2>/dev/null | grep -q 'libcublasLt.so' && return 0
    for lib in /usr/local/cuda/lib64 $(python3 -c 'import site; print(*site.getsitepackages())' 2>/dev/null); do
        lib=$(find "$lib" -name 'libcublasLt.so.*' 2>/dev/null | head -n 1)
        [ -z "$lib" ] || { export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$(dirname "$lib") && return 0; }
    done
}

wanted() { [[ -z $only || $1 == *"$only"* ]]; }

# item NAME LIMIT COMMAND...: 0 passed; 77 counts as skipped.
item() {
    local name=$1 limit=$2 began=$SECONDS rc outcome
    shift 2
    wanted "$name" || return 0
    if [ -n "$dry" ]; then
        printf '%-48s %4s s  %s\n' "$name" "$limit" "$*"
        return 0
    fi
    [ "$SECONDS" -lt "$end" ] || { echo "$name,late,0" >>"$out/results.csv" && return 1; }
    [ -z "$small" ] || limit=$((limit * 3)) # emulated, perhaps beside other work
    [ $((SECONDS + limit)) -le "$end" ] || limit=$((end - SECONDS))
    case $1 in # timeout(1) runs programs: functions go through a shell of their own
    info | start_with | daemon_answers | repeat_stores) set -- bash -c "$*" ;;
    esac
    timeout -k 5 "$limit" "$@" >"$out/log/$name.log" 2>"$out/log/$name.err"
    rc=$?
    case $rc in
    0) outcome=passed ;;
    77) outcome=skipped ;;
    124 | 137) outcome=timeout ;;
    *) outcome=failed ;;
    esac
    echo "$name,$outcome,$((SECONDS - began))" >>"$out/results.csv"
    printf '%-48s %s (%d s)\n' "$name" "$outcome" $((SECONDS - began))
    [ "$outcome" = passed ] || [ "$outcome" = skipped ] || {
        cat "$out/log/$name.log" "$out/log/$name.err" | tail -n 5 | cut -c1-200
        return 1
    }
}

# Items beside each other, one for each CPU.
beside() {
    while [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; do
        wait -n
    done
    [ -n "$dry" ] && item "$@" && return
    item "$@" &
}

# ---- models -------------------------------------------------------------------------------------

model() { name=$1 shape=$2 type=$3 file=$models/$1.gguf overlay='' && shape_options=("${@:4}"); }

ready() {
    wanted "$1" && [ -z "$dry" ] || return 0
    [ "$SECONDS" -lt "$end" ] || { echo "$1,late,0" >>"$out/results.csv" && return 1; }
    mkdir -p "$models"
    if [ ! -e "$file" ] && [ -n "$small" ]; then
        cp "$data/cache_model.gguf" "$file"
    elif [ ! -e "$file" ]; then
        timeout $((end - SECONDS)) "$build/tools/pipit-mkmodel" --shape "$shape" "${shape_options[@]}" --type "$type" \
            "$file" >"$out/log/mkmodel_$name.log" 2>&1 || { echo "mkmodel_$name,failed,0" >>"$out/results.csv" && return 1; }
    fi
    [ -z "$overlay" ] || [ -e "$models/$overlay" ] || "$build/tools/pipit-mkmodel" --base "$file" --skew \
        "$models/$overlay" >"$out/log/mkmodel_$overlay.log" 2>&1 || { echo "mkmodel_$overlay,failed,0" >>"$out/results.csv" && return 1; }
}

drop_models() { [ -n "$dry" ] || rm -f "$models"/*.gguf; }

# bench BATCH PREFILL DEPTHS POLICIES [PRODUCTS]: policies (blanks between) are timed in one process, in turn, an engine each.
bench() {
    local batch=$1 prefill=$2 depths=$3 id policy arguments=()
    id=bench_${name}${overlay:+_${overlay%.gguf}}_b${batch}_d${depths//[^0-9]/-}_${4//[^a-z0-9]/_}${5:+_$5}
    for policy in $4; do
        arguments+=(--kv "$policy")
    done
    [ -z "$overlay" ] || arguments+=(--overlay "$models/$overlay")
    [ -z "$small" ] || prefill=16 depths=16
    [ -z "$small" ] || arguments+=(-n 2 -r 1 --copy-bytes 1MiB)
    [ -n "$small" ] && [[ $4 != *snapkv* ]] || arguments+=(--kernels "$out/log/$id.kernels.csv")
    ready "$id" || return 0
    item "$id" 120 "$build/bench/pipit-bench" --model "$file" --backend "$backend" "${arguments[@]}" --batch "$batch" \
        --prefill "$prefill" --depth "$depths" --products "${5:-auto}" --share-limit 120 --header
    [ ! -s "$out/log/$id.log" ] || sed "s/^/$id,/" "$out/log/$id.log" >>"$out/bench.csv"
    [ ! -s "$out/log/$id.kernels.csv" ] || sed "s/^/$id,/" "$out/log/$id.kernels.csv" >>"$out/kernels.csv"
}

# ---- the calls ----------------------------------------------------------------------------------

info() {
    nvidia-smi --query-gpu=name,compute_cap,driver_version,memory.total,clocks.max.sm,clocks.max.mem --format=csv
    uname -srm && cat "$build/packed.txt" "$here/packed.txt" 2>/dev/null | head -n 20
    nproc && free -g && df -h /dev/shm /tmp
    echo "LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}"
    ldd "$build/bench/pipit-bench" "$backend"
    ! ldd "$build/bench/pipit-bench" "$backend" | grep 'not found'
}

# A start with each way of loading code: its time, and the line that says what multiplies prompts.
start_with() {
    time CUDA_MODULE_LOADING=$1 "$build/bench/pipit-bench" --model "$data/cache_model.gguf" --backend "$backend" --prefill 16 \
        --depth '' -r 1 --resident
    nvidia-smi --query-gpu=memory.used,memory.total --format=csv 2>/dev/null || true
}

# The daemon, its engine on this device, and clients beside each other, of which one knows its answer.
daemon_answers() {
    local dir pid asks=() kv tokens=100 bytes=200
    [ -z "$small" ] || tokens=16 bytes=40
    dir=$(mktemp -d)
    "$build/daemon/front/pipitd" --model "$data/stories260K.gguf" --backend cuda --runtime-dir "$dir" --gateway no \
        --kv f16+keyformer:50% &
    pid=$!
    trap 'kill $pid 2>/dev/null' EXIT
    ask() { "$build/client/pipit" ask --runtime-dir "$dir" --raw -n "$tokens" --timeout 150 "$@" "Once upon a time"; }
    "$build/client/pipit" wait --runtime-dir "$dir" --timeout 60 || return 1
    for kv in f16 f16+keyformer:50% f16+recency:50%; do
        ask --kv "$kv" --seed 3 >"$dir/$kv" &
        asks+=($!)
    done
    ask --kv f16 --temp 0 >"$dir/greedy" || return 1
    for kv in "${asks[@]}"; do
        wait "$kv" || return 1
    done
    cat "$dir/greedy" && "$build/client/pipit" status --runtime-dir "$dir"
    nvidia-smi --query-compute-apps=used_memory --format=csv,noheader 2>/dev/null || true
    # the golden text begins with the prompt
    { printf 'Once upon a time' && head -c "$bytes" "$dir/greedy"; } | cmp -n "$bytes" - "$data/stories260K.txt" || return 1
    kill "$pid" && wait "$pid" && rm -r "$dir"
}

repeat_stores() {
    local until=$((SECONDS + $1)) n=0
    while [ "$SECONDS" -lt "$until" ]; do
        "$build/tests/kernels/check_qkv_store" --backend "$backend" --sides 2 --few >/dev/null || return 1
        n=$((n + 1))
    done
    echo "check_qkv_store $n times"
}

call_1() {
    local few=() c g
    [ -z "$small" ] || few=(--few)
    item info 20 info
    for c in rows norm kv_slots matmul rope_store qkv_store cut expect attention select predict experts recur; do
        beside "check_$c" 150 "$build/tests/kernels/check_$c" --backend "$backend" --sides 2 "${few[@]}"
    done
    for c in own cublas; do # the tiles that auto leaves unused where there is cublasLt, too
        beside "check_matmul_$c" 150 "$build/tests/kernels/check_matmul" --backend "$backend" --sides 2 --prefill "$c" "${few[@]}"
    done
    beside check_sample 60 "$build/tests/cuda/check_sample" "$backend" 2
    for g in stories cache arch; do
        beside "golden_$g" 120 "$build/tests/golden/test_$g" "$data" "$backend"
    done
    beside golden_cublas 120 "$build/tests/cuda/test_cuda_lt_model" "$backend" - "$data/stories260K.ids" \
        "$build/tests/cuda/stories_bf16.gguf" "$build/tests/cuda/stories_f16.gguf" "$build/tests/cuda/stories_q8_0.gguf"
    beside ahead 60 "$build/tests/cuda/test_async_step" "$backend" "$data"
    beside company 60 "$build/tests/cuda/test_company" "$backend" "$build/tests/cuda/codes.gguf"
    wait
    item start_lazy 40 start_with LAZY
    item start_eager 60 start_with EAGER
    item daemon 60 daemon_answers
    item qkv_store_repeated 90 repeat_stores "${small:-60}"
}

call_2() {
    local few=() profiled
    [ -z "$small" ] || few=(--small)
    item kbench 400 "$build/bench/pipit-kbench" --module "$backend" "${few[@]}"
    item kbench_own 60 "$build/bench/pipit-kbench" --module "$backend" --products own --only "prefill Q" "${few[@]}"
    [ -n "$dry" ] || command -v ncu >/dev/null || { echo "ncu is not installed" && return; }
    for profiled in "decode_stream|attention bf16, depth 8192, batch 1" "row_q|gemv Q4_K 8B gate (14336 x 4096), 1 rows" \
        "prefill_|attention bf16, prompt, rows 6144 to 8192"; do
        item "ncu_${profiled%|*}" 60 ncu --clock-control none --set full -k "regex:${profiled%|*}" -c 2 \
            "$build/bench/pipit-kbench" --module "$backend" --only "${profiled#*|}"
    done
}

call_3() {
    model llama-3.2-1b_BF16 llama-3.2-1b BF16
    bench 1 16,512 128,2048 "full fp8" # decode 80 %; time to the first of 16 tokens 2 ms
    drop_models
    model qwen3-0.6b_BF16 qwen3-0.6b BF16
    bench 1 512 128,2048 "full fp8" # decode 65 %
    drop_models
    model llama-3.1-8b_BF16 llama-3.1-8b BF16
    bench 1 512 128,2048,8192 "full fp8" # decode 90 %
    bench 1 512,2048,8192 128 full own   # prefill 70 % of the matrix rate
    bench 1 512,2048,8192 128 full cublas
    drop_models
    model llama-3.1-8b_Q8_0 llama-3.1-8b Q8_0
    bench 1 512 128,2048 full # decode 88 %
    bench 1 512,2048 128 full own    # prompts: 13,100 tok/s by own tiles ...
    bench 1 512,2048 128 full cublas # ... 21,300 and 26,600 by counts
    drop_models
    model llama-3.1-8b_Q4_K llama-3.1-8b Q4_K
    bench 1 512 128,2048 full # decode 80 %
    bench 1 16,512,2048 128 full own    # prompts: 11,780 tok/s by own tiles ...
    bench 1 16,512,2048 128 full cublas # ... 22,100 by counts;
    bench 1 2048 128 full,chunk=2048 cublas # 26,800 in one chunk
}

call_4() {
    local c sanitizer
    sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null || true)
    [ -n "$sanitizer$dry" ] || { echo "compute-sanitizer is not installed" | tee "$out/log/sanitizer.log" && return; }
    for c in qkv_store attention select cut recur matmul experts; do
        beside "memcheck_$c" 150 "${sanitizer:-compute-sanitizer}" --error-exitcode 9 \
            "$build/tests/kernels/check_$c" --backend "$backend" --sides 2 --few --every 7
    done
    for c in attention matmul experts; do
        beside "racecheck_$c" 150 "${sanitizer:-compute-sanitizer}" --tool racecheck --error-exitcode 9 \
            "$build/tests/kernels/check_$c" --backend "$backend" --sides 2 --few --every 23
    done
    beside racecheck_sample 150 "${sanitizer:-compute-sanitizer}" --tool racecheck --error-exitcode 9 "$build/tests/cuda/check_sample" "$backend" 1
    wait
}

call_5() {
    [ -n "$small" ] || item peers 120 python3 "$here/tools/gpu_peers.py" "$out/peers.csv"
    model llama-3.1-8b-4_BF16 llama-3.1-8b BF16 --layers 4
    bench 8 512 65536,131072 "full fp8" # attention's slope 88 / 82 %; FP8's at most 0.53 of it
    bench 1 512 8192,32768 "f16 fp8 kv8 k8v4 kv4" # kv4 by counts: 0.98 to 1.01 of f16's, 1.08 to 1.10
    bench 8 512 8192 "f16 fp8 kv8 k8v4 kv4"       # 1.20 to 1.22
    bench 1 2048 8192 "full expected:50% snapkv:50% keyformer:50%" # prompts by counts: -, 0.93, 0.92
    drop_models
    model llama-3.1-8b_BF16 llama-3.1-8b BF16
    bench 1 512 8192 "full fp8+keyformer:50%"
    overlay=skew.gguf
    # an engine each has its own weights: two of them beside the cache fit 80 GB
    [ -n "$small" ] || bench 1 512 8192,32768 "full infinigen:share=7%"
    [ -n "$small" ] || bench 1 512 8192,32768 "infinigen:share=15%,pool=host infinigen:share=7%,pool=host"
    drop_models
    model llama-2-7b_BF16 llama-2-7b BF16
    bench 8 512 4096 "full sparq:r=32,k=128,layout=2k"
    bench 8 512 8192 keyformer:50%
}

lend_libraries
find_cublas
export -f info start_with daemon_answers repeat_stores
export build backend data here small
"call_$call"
drop_models
[ -z "$own_models" ] || [ -n "$dry" ] || rmdir "$models" 2>/dev/null
[ -n "$dry" ] && rm -rf "$out" && exit 0
rm -rf "$out/lib"
tar -C "$out/.." -czf "$out.tgz" "call-$call"
echo "results: $out.tgz"
! grep -qE ',(failed|timeout),' "$out/results.csv" 2>/dev/null || exit 1
! grep -q ',late,' "$out/results.csv" 2>/dev/null || exit 3
