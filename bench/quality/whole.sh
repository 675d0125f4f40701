#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Everything in docs/quality.md, by one command, in a build folder that has pipit-eval and pipit-skew:
#
#     bench/quality/whole.sh BUILD MODEL.gguf DATA WORK [OPTION of run.py]...
#
# PARTS=reading measures the methods that read part of the cache alone, PARTS=main the others alone; the page is made of both.
# DATA: run.py. WORK keeps what was measured: the command may be stopped and given again. Two cells at once, a thread each.
# Needs rouge-score and matplotlib. PYTHON names another interpreter.
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
for part in ${PARTS:-main reading}; do
    case $part in
    main) run main "$results-quality-smollm2.csv" "$@" ;;
    reading) run reading "$results-quality-reading.csv" --reading --skew "$work/skew.gguf" "$@" ;;
    *) echo "whole.sh: no part $part (main, reading)" >&2 && exit 2 ;;
    esac
done
"$py" "$here/plot.py" "$results-quality-smollm2.csv" "$top/docs/pictures"
"$py" "$here/plot_reading.py" "$results" "$top/docs/pictures"
"$py" "$here/page.py" "$results-quality-smollm2.csv" "$results-quality-reading.csv" "$top/docs/quality.md"
