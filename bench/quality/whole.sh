#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Everything in docs/results/quality.md, by one command, in a build folder that has pipit-eval, pipit-skew and pipit-bench:
#
#     bench/quality/whole.sh BUILD MODEL.gguf DATA WORK [OPTION of run.py]...
#
# PARTS=reading measures the methods that read part of the cache alone, PARTS=main the others alone, PARTS=steps the time of one
# step of the former (run it alone on the machine); the pages are made of all.
# DATA: run.py. WORK keeps what was measured: the command may be stopped and given again. Two cells at once, a thread each.
# Needs rouge-score, matplotlib and scour. PYTHON names another interpreter.
set -e
build=$1 model=$2 data=$3 work=$4
shift 4
here=$(dirname "$0")
top=$here/../..
day=$(date +%F)
results=$top/bench/results/$day
py=${PYTHON:-python3}
mkdir -p "$work/main" "$work/reading"
[ -e "$work/skew.gguf" ] ||
    "$build/tools/pipit-skew" --model "$model" --text "$data/text/war-and-peace.txt" "$work/skew.gguf"
run() {
    folder=$1 out=$2
    shift 2
    "$py" "$here/run.py" --model "$model" --data "$data" --work "$work/$folder" --out "$out" \
        --eval "$build/bench/pipit-eval" --jobs 2 --threads 1 "$@"
}
for part in ${PARTS:-main reading steps}; do
    case $part in
    main) run main "$results-quality-smollm2.csv" "$@" ;;
    reading) run reading "$results-quality-reading.csv" --reading --skew "$work/skew.gguf" "$@" ;;
    steps)
        "$py" "$here/step_time.py" --model "$model" --skew "$work/skew.gguf" --bench "$build/bench/pipit-bench" \
            --out "$results-reading-steps.csv"
        ;;
    *) echo "whole.sh: no part $part (main, reading, steps)" >&2 && exit 2 ;;
    esac
done
"$py" "$here/plot.py" "$results-quality-smollm2.csv" "$top/docs/pictures"
"$py" "$here/plot_reading.py" "$results" "$top/docs/pictures"
set --
# Agreements are of the studies in PyTorch (sparq_study.py, infinigen_study.py): the latest that are there.
for method in sparq infinigen; do
    latest=$(ls "$top"/bench/results/*-$method-agreement.csv 2>/dev/null | tail -n 1)
    [ -z "$latest" ] || set -- "$@" --agreement "$latest"
done
"$py" "$here/page.py" "$results-quality-smollm2.csv" "$results-quality-reading.csv" "$results-reading-steps.csv" \
    "$top/docs/results/quality.md" "$top/docs/results/sparse-attention.md" "$@"
