#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# pipit beside llama.cpp on the same GGUF, the same threads, in one run: CSV, table, plot.
#
#   bench/run.sh [--quick] [--cell NAME] [--list] [--prepare] [--report] [--rounds N] [--out FILE.csv] [--model FILE]
#
# A cell is one figure of the matrix (--list prints their names). In a cell the programs take turns, --rounds times,
# each in a process of its own; every line goes to the CSV with its cell and round, and a round that is there already
# is not made again, so a run that was stopped goes on. bench/speed/table.py then takes medians over the rounds; of
# llama.cpp's settings the best counts.
#
# The peer is llama-cpp-python, the newest on PyPI, built for this CPU with clang (gcc 12 miscompiles ggml's AMX set-up)
# in a venv under $XDG_CACHE_HOME/pipit, never taken from pip's cache (a wheel there may be of other instruction sets);
# PIPIT_PEER_PYTHON=/path/to/python uses one that is installed already. On a CPU with AMX its instruction sets are named one
# by one: GGML_NATIVE leaves AMX out where the compiler does not know the CPU's name. And clang before 15 says __AMXINT8__
# where ggml asks for __AMX_INT8__: with the option alone its AMX files compile to nothing, so the macros are defined too.
set -euo pipefail
cd "$(dirname "$0")/.."

model=${PIPIT_SMOLLM2:-}
build=${PIPIT_BUILD:-build}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/pipit
out="" only="" rounds=3 repeats=3 steps=24 do_list=0 do_prepare=0 do_report=0
cells="limits prefill-128 prefill-512 prefill-2048 prefill-7900 decode-0 decode-512 decode-2048 decode-4096 decode-7900
    decode-512-b2 decode-512-b8 first-512 resident"

usage() { sed -n '3,7p' "$0" | cut -c3-; }
while [ $# -gt 0 ]; do
    case $1 in
    --quick) rounds=1 repeats=2 steps=12 cells="limits prefill-512 decode-0 decode-512 decode-512-b8 resident" ;;
    --cell) only=$2 && shift ;;
    --rounds) rounds=$2 && shift ;;
    --out) out=$2 && shift ;;
    --model) model=$2 && shift ;;
    --list) do_list=1 ;;
    --prepare) do_prepare=1 ;;
    --report) do_report=1 ;;
    -h | --help) usage && exit 0 ;;
    *) usage >&2 && exit 2 ;;
    esac
    shift
done
if [ $do_list = 1 ]; then
    tr -s ' \n' '\n' <<< "$cells" && exit 0
fi
[ -n "$model" ] || { echo "run.sh: --model FILE, or PIPIT_SMOLLM2" >&2 && exit 2; }
bench=$build/bench/pipit-bench
[ -x "$bench" ] || { echo "run.sh: $bench is not built" >&2 && exit 2; }
out=${out:-bench/results/$(date +%F)-peer-$(basename "$model" .gguf).csv}
threads=$(nproc)

# ggml's options for this CPU.
peer_options() {
    local have option ret="-DGGML_NATIVE=OFF"
    have=$(sed -n '/^flags/{s/.*: //p;q}' /proc/cpuinfo)
    if ! grep -qw amx_int8 <<< "$have"; then
        echo "-DGGML_NATIVE=ON" && return
    fi
    for option in sse4_2:SSE42 f16c:F16C fma:FMA bmi2:BMI2 avx:AVX avx2:AVX2 avx_vnni:AVX_VNNI avx512f:AVX512 avx512vbmi:AVX512_VBMI \
        avx512_vnni:AVX512_VNNI avx512_bf16:AVX512_BF16 amx_tile:AMX_TILE amx_int8:AMX_INT8 amx_bf16:AMX_BF16; do
        ! grep -qw "${option%:*}" <<< "$have" || ret="$ret -DGGML_${option#*:}=ON"
    done
    echo "$ret"
}

peer_macros() {
    ! grep -qw amx_int8 /proc/cpuinfo || echo "-D__AMX_TILE__ -D__AMX_INT8__ -D__AMX_BF16__"
}

peer_python() {
    if [ -n "${PIPIT_PEER_PYTHON:-}" ]; then
        echo "$PIPIT_PEER_PYTHON" && return
    fi
    # One of other options is another peer: built before AMX was in it, it would be three times slower at prompts.
    local venv
    venv=$cache/peer-venv-$(printf '%s' "$(peer_options) $(peer_macros)" | sha256sum | cut -c 1-8)
    if ! "$venv/bin/python" -c 'import llama_cpp' 2> /dev/null; then
        echo "run.sh: building llama-cpp-python (some ten minutes on two cores)" >&2
        python3 -m venv "$venv" >&2
        CC=clang CXX=clang++ CMAKE_ARGS="$(peer_options)" CFLAGS="$(peer_macros)" CXXFLAGS="$(peer_macros)" \
            "$venv/bin/pip" install --no-cache-dir --no-binary llama-cpp-python llama-cpp-python >&2
    fi
    echo "$venv/bin/python"
}
python=$(peer_python)
peer() { "$python" bench/oracle/llama_speed.py --model "$model" --threads "$threads" --states "$cache/peer-states" "$@"; }
ours() { "$bench" --model "$model" --threads "$threads" --no-header "$@" 2> /dev/null; }

if [ $do_prepare = 1 ]; then
    peer --prepare --settings f16,f16-flash
    exit
fi

if [ ! -e "$out" ]; then
    mkdir -p "$(dirname "$out")"
    {
        echo "# $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1), $threads CPUs; $(date +%F); $(basename "$model")"
        echo "# commit $(git rev-parse --short HEAD), llama-cpp-python $(peer --version)"
        echo "cell,round,model,kv,what,tokens,batch,value,min,max,unit,repeats,clean,weight_bytes,kv_bytes,read_gb_s,share,ratio,byte_ratio"
    } > "$out"
fi

# One program's part of a cell and round, unless it is there.
part() {
    local cell=$1 round=$2 who=$3 tmp
    shift 3
    if grep -q "^$cell,$round,.*#$who\$" "$out.parts" 2> /dev/null; then
        return
    fi
    tmp=$("$@") || { echo "run.sh: $cell, round $round, $who failed" >&2 && return 1; }
    sed "s/^/$cell,$round,/" <<< "$tmp" >> "$out"
    echo "$cell,$round,#$who" >> "$out.parts"
}

policies=(--kv full --kv kv8 --kv fp8 --kv "keyformer:50%" --kv "kv8+keyformer:50%")
cell() {
    local name=$1 round=$2 n batch=1
    case $name in
    limits) part "$name" "$round" ours ours -p 16 -d 0 -n 4 -r 1 --limits ;;
    prefill-*)
        n=${name#prefill-}
        local r=$repeats
        [ "$n" -gt 4000 ] && r=1
        part "$name" "$round" ours ours -p "$n" -d "" -r "$r" --limits
        part "$name" "$round" peer peer --prefill "$n" --repeats "$r" --settings f16,f16-flash
        ;;
    decode-*)
        n=${name#decode-} && n=${n%-b*}
        [ "${name%-b*}" != "$name" ] && batch=${name##*-b}
        part "$name" "$round" ours ours -p "" -d "$n" -b "$batch" -n "$steps" -r "$repeats" "${policies[@]}"
        # Its q8_0 cache is the slowest of the three at 2048 already, and takes minutes to read 7900 tokens into.
        local settings=f16,f16-flash,q8_0-flash
        [ "$n" -le 2048 ] || settings=f16,f16-flash
        part "$name" "$round" peer peer --depth "$n" --batch "$batch" --n-new "$steps" --repeats "$repeats" --settings $settings
        ;;
    first-*)
        n=${name#first-}
        part "$name" "$round" ours "$python" bench/service/first_token.py --model "$model" --tokens "$n" --threads "$threads"
        part "$name" "$round" peer peer --first "$n" --repeats "$repeats" --settings f16,f16-flash
        ;;
    resident)
        part "$name" "$round" ours ours -p "" -d 16 -n 16 -r 1 -c 2048 --resident
        part "$name" "$round" peer peer --ctx 2048 --n-new 16 --resident --settings f16,f16-flash
        ;;
    *) echo "run.sh: no cell $name" >&2 && return 2 ;;
    esac
}

if [ $do_report = 0 ]; then
    for round in $(seq "$rounds"); do
        for name in ${only:-$cells}; do
            cell "$name" "$round"
        done
    done
fi
"$python" bench/speed/table.py "$out"
