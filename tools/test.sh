#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing, builds every configuration, runs all tests, and ends with one line:
#   N passed, N failed, N skipped
# Usage: tools/test.sh [--quick]      --quick: only the gcc configuration and the style checks
set -uo pipefail
cd "$(dirname "$0")/.."

quick=
[ "${1:-}" = --quick ] && quick=1
out=${PIPIT_TEST_DIR:-build-test}
mkdir -p "$out"
passed=0
failed=0
skipped=0

tools/setup.sh || exit 1

# The model is used where it is there; without a network those tests skip and say so.
if [ -z "${PIPIT_SMOLLM2:-}" ]; then
    PIPIT_SMOLLM2=$(tools/fetch_model.sh) || PIPIT_SMOLLM2=
fi
export PIPIT_SMOLLM2

# Independent implementations that some tests compare with; without a network those tests skip.
oracles=$PWD/$out/oracles
if [ ! -f "$oracles/.complete" ] &&
    python3 -m pip install --quiet --disable-pip-version-check --target "$oracles" gguf tokenizers jinja2 \
        >"$out/oracles.log" 2>&1; then
    touch "$oracles/.complete"
fi
[ -f "$oracles/.complete" ] && export PYTHONPATH=$oracles

note() { echo "== $*"; }

# check NAME COMMAND...: one test that is not meson's.
check() {
    local name=$1 rc
    shift
    "$@" >"$out/$name.log" 2>&1
    rc=$?
    case $rc in
    0) passed=$((passed + 1)) && echo "ok      $name" ;;
    77) skipped=$((skipped + 1)) && echo "SKIP    $name: $(tail -n 1 "$out/$name.log")" ;;
    *) failed=$((failed + 1)) && echo "FAILED  $name" && tail -n 40 "$out/$name.log" ;;
    esac
}

# config NAME [meson options]: build with all warnings as errors, then run meson's tests. Which tests a
# configuration leaves out is said in CONTRIBUTING.md.
config() {
    local name=$1 dir=$out/$1
    shift
    note "configuration $name"
    if [ ! -f "$dir/build.ninja" ] && ! meson setup "$dir" "$@" >"$out/$name.setup.log" 2>&1; then
        tail -n 20 "$out/$name.setup.log"
        failed=$((failed + 1))
        return
    fi
    if ! ninja -C "$dir" >"$out/$name.build.log" 2>&1; then
        grep -E 'error|warning|FAILED' "$out/$name.build.log" | head -n 40
        echo "FAILED  $name: build"
        failed=$((failed + 1))
        return
    fi
    meson test -C "$dir" --no-rebuild --print-errorlogs --num-processes 2 ${suites[@]+"${suites[@]}"} \
        >"$out/$name.test.log" 2>&1
    local rc=$? ok bad skip
    ok=$(sed -n 's/^Ok: *\([0-9]*\).*/\1/p' "$out/$name.test.log")
    bad=$(sed -n 's/^\(Fail\|Timeout\|Unexpected Pass\): *\([0-9]*\).*/\2/p' "$out/$name.test.log" |
        awk '{ n += $1 } END { print n + 0 }')
    skip=$(sed -n 's/^Skipped: *\([0-9]*\).*/\1/p' "$out/$name.test.log")
    passed=$((passed + ${ok:-0}))
    failed=$((failed + bad))
    skipped=$((skipped + ${skip:-0}))
    grep -E ' SKIP ' "$out/$name.test.log" || true
    if [ "$rc" -ne 0 ]; then
        [ "$bad" -gt 0 ] || failed=$((failed + 1))
        grep -vE ' (OK|SKIP) ' "$out/$name.test.log" | tail -n 80
    fi
    echo "$name: ${ok:-0} passed, $bad failed, ${skip:-0} skipped"
}

note "style"
check layers tools/check_layers.py
check style tools/check_style.py
check format tools/check_format.sh

suites=()
config gcc
if [ -z "$quick" ]; then
    suites=(--no-suite slow)
    CC=clang config clang
    config asan -Db_sanitize=address,undefined
    suites=(--suite threads)
    config tsan -Db_sanitize=thread
fi

if ! command -v nvcc >/dev/null; then
    echo "SKIP    cuda: no nvcc on this machine, so no CUDA code was compiled"
    skipped=$((skipped + 1))
fi

echo
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
