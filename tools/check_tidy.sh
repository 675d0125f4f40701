#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# clang-tidy over the C files given, or over all that are not kernels or tests.
# Usage: tools/check_tidy.sh [FILE.c]...      BUILD: the folder with compile_commands.json (build)
set -uo pipefail
cd "$(dirname "$0")/.."
command -v clang-tidy >/dev/null || { echo "clang-tidy is not installed"; exit 77; }
build=${BUILD:-build}
if [ $# -eq 0 ]; then
    mapfile -t files < <(git ls-files '*.c' | grep -E '^(base|quant|gguf|engine|proto|daemon|client)/')
    set -- "${files[@]}"
fi
printf '%s\n' "$@" | xargs -P 2 -n 4 clang-tidy --quiet -p "$build" 2>/dev/null | grep -E 'warning:|error:' |
    sort -u | tee "${TMPDIR:-/tmp}/pipit-tidy.$$"
n=$(wc -l <"${TMPDIR:-/tmp}/pipit-tidy.$$")
rm -f "${TMPDIR:-/tmp}/pipit-tidy.$$"
echo "$n findings"
[ "$n" -eq 0 ]
