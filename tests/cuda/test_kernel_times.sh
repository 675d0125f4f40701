#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# pipit-bench --kernels: every launch of a step is counted, by kernel and grid, whether it would have begun early,
# gone beside others, or been part of a graph. Of times, on an emulated device, only that a kernel takes some.
#
#   test_kernel_times.sh PIPIT-BENCH MODULE MODEL-OF-SIX-LAYERS OVERLAY-WITH-SKEWS
set -euo pipefail
bench=$1 module=$2 model=$3 skew=$4
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

time_it() { # FILE OPTION...
    "$bench" --model "$model" --backend "$module" -p 16 -d 16 -n 4 -r 1 --copy-bytes 1MiB --kernels "$@" >"$dir/out" 2>"$dir/err" ||
        { cat "$dir/err" && exit 1; }
}

# launches FILE WHAT KERNEL: launches a step of all grids together
launches() {
    python3 - "$@" <<'PY'
import csv, sys
path, what, kernel = sys.argv[1:]
rows = [r for r in csv.DictReader(open(path)) if r["what"] == what]
if not rows:
    sys.exit(f"{path} has no row of {what}")
for r in rows:
    each, step = float(r["us_a_launch"]), float(r["us_a_step"])
    if int(r["launches"]) < 1 or each < 0 or abs(step * int(r["steps"]) - each * int(r["launches"])) > 1 + 0.02 * each * int(r["launches"]):
        sys.exit(f"{r} does not add up")
n = sum(int(r["launches"]) for r in rows if r["kernel"].startswith(kernel))
steps = {int(r["steps"]) for r in rows}
print(n / steps.pop() if len(steps) == 1 else steps)
PY
}

expect() { # FILE WHAT KERNEL LAUNCHES
    local got
    got=$(launches "$1" "$2" "$3")
    [ "$got" = "$4" ] || { echo "$2: $got launches of $3 a step, expected $4" && cat "$1" && exit 1; }
}

time_it "$dir/full.csv"
expect "$dir/full.csv" decode decode_stream 6.0
expect "$dir/full.csv" decode embed_plain 1.0
expect "$dir/full.csv" decode sample_rows 1.0
expect "$dir/full.csv" decode "an event alone" 8.0
expect "$dir/full.csv" prefill prefill_mma 6.0
expect "$dir/full.csv" prefill "an event alone" 8.0

# KERNEL's time a launch, us
takes() {
    python3 -c '
import csv, sys
print(max(float(r["us_a_launch"]) for r in csv.DictReader(open(sys.argv[1])) if r["what"] == "decode" and r["kernel"].startswith(sys.argv[2])))' "$@"
}
awk -v kernel="$(takes "$dir/full.csv" decode_stream)" -v alone="$(takes "$dir/full.csv" 'an event alone')" \
    'BEGIN { exit !(kernel > alone && kernel > 0) }' || { echo "attention takes no time" && cat "$dir/full.csv" && exit 1; }

time_it "$dir/ahead.csv" --overlay "$skew" --kv f32+infinigen:share=50%,pool=host
expect "$dir/ahead.csv" decode bring 4.0

"$bench" --model "$model" --backend cpu -p '' -d 4 -n 2 -r 1 --kernels "$dir/none.csv" >"$dir/out" 2>"$dir/err" &&
    echo "the backend cpu has no such clock" && exit 1
grep -q 'only the backend cuda' "$dir/err"
[ ! -e "$dir/none.csv" ]
"$bench" --model "$model" --backend "$module" -p '' -d 4 -n 2 -r 1 --kernels "$dir/none/none.csv" >"$dir/out" 2>"$dir/err" &&
    echo "a file that cannot be written" && exit 1
grep -q 'cannot write .*none.csv' "$dir/err"
