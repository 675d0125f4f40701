#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# One command from a fresh clone to an answer: installs what is missing, builds, fetches the model,
# starts pipitd on the CPU, asks, prints the streamed answer and a line of figures, stops the daemon.
# Usage: tools/demo.sh [--swiftkv] [PROMPT]
#   --swiftkv: with the distilled overlay of models/ (16 layers share one K and V) in 4 bits; the
#   memory plan is printed beside the base model's, and a number looked up in a long text
set -euo pipefail
if [ "${1:-}" = --help ] || [ "${1:-}" = -h ]; then
    sed -n '3,7s/^# \{0,1\}//p' "$0"
    exit 0
fi
cd "$(dirname "$0")/.."

swiftkv=
if [ "${1:-}" = --swiftkv ]; then
    swiftkv=1
    shift
fi
prompt=${1:-Why do birds sing at dawn? Answer in two sentences.}
build=${PIPIT_BUILD_DIR:-build}

tools/setup.sh --demo
if [ ! -f "$build/build.ninja" ]; then
    echo "demo: configuring" >&2
    meson setup "$build" >"$build.log" 2>&1 || { cat "$build.log" >&2; exit 1; }
    rm -f "$build.log"
fi
echo "demo: building (quick when nothing changed)" >&2
ninja -C "$build" >"$build/demo.log" 2>&1 || { tail -n 40 "$build/demo.log" >&2; exit 1; }

ask=(ask --stats --temp 0)
if model=$(tools/fetch_model.sh); then
    ask+=(-n 200)
else
    cat >&2 <<'EOF'
demo: **********************************************************************
demo: SmolLM2 could not be fetched. Falling back to the 1 MB model in the tree:
demo: it writes little children's stories and cannot answer questions.
demo: **********************************************************************
EOF
    if [ -n "$swiftkv" ]; then
        echo "demo: --swiftkv needs SmolLM2: the overlay is for it alone" >&2
        exit 1
    fi
    model=tests/data/stories260K.gguf
    ask+=(--raw --temp 0 -n 100)
    prompt=${1:-Once upon a time}
fi

run=$(mktemp -d "${TMPDIR:-/tmp}/pipit-demo.XXXXXX")
daemon=
stop() {
    if [ -n "$daemon" ]; then
        kill "$daemon" 2>/dev/null || true
        wait "$daemon" 2>/dev/null || true
    fi
    rm -rf "$run"
}
trap stop EXIT

settings=(--model "$model" --backend cpu --ctx 2048)
if [ -n "$swiftkv" ]; then
    base=("${settings[@]}" --kv full)
    settings+=(--overlay models/smollm2-135m-swiftkv-14-16.gguf --kv kv4)
    plan() { "$build/daemon/front/pipitd" plan "$@" | sed 's/^policy \([^,]*\).*/policy \1/'; }
    echo "demo: the plan of the base model (left), and with overlay and kv4 (right)" >&2
    width=$(plan "${base[@]}" | awk '{ if (length > w) w = length } END { print w + 1 }')
    paste -d '|' <(plan "${base[@]}" | awk -v w="$width" '{printf "%-*s\n", w, $0}') <(plan "${settings[@]}") >&2
fi
"$build/daemon/front/pipitd" "${settings[@]}" --runtime-dir "$run" \
    2>"$run/log" &
daemon=$!
pipit() { "$build/client/pipit" "$@" --runtime-dir "$run"; }
if ! pipit wait --timeout 60; then
    cat "$run/log" >&2
    exit 1
fi
echo "demo: asking $(basename "$model"): $prompt" >&2
pipit "${ask[@]}" "$prompt" </dev/null # a pipe there would be read as part of the prompt
if [ -n "$swiftkv" ]; then
    number=4718206 # of seven digits, as those of docs/results/distillation.md: under kv4, in 1,000 tokens, 59 of 100
    echo "demo: $number, hidden in 3,500 characters, is asked for (such numbers come right in six cases of ten)" >&2
    text=$(grep -v '^    \||' ARCHITECTURE.md | tr -s '`#*[]-' ' ' | head -c 3500)
    before=${text:0:1200}
    {
        printf '%s. ' "${before%.*}"
        echo "One of the special magic numbers for harbour is: $number.${before##*.}${text:1200}"
        printf '\n\n%s\n' "What is the special magic number for harbour mentioned in the provided text?"
    } | pipit ask --stats --temp 0 -n 16 -
fi
