#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Are all .c files as clang-format leaves them? Headers hold hand-set tables and are left alone.
# Usage: tools/check_format.sh [--fix]
set -uo pipefail
cd "$(dirname "$0")/.."
command -v clang-format >/dev/null || { echo "clang-format is not installed"; exit 77; }
if [ "${1:-}" = --fix ]; then
    git ls-files -co --exclude-standard '*.c' | xargs clang-format -i
    exit
fi
git ls-files '*.c' | xargs clang-format --dry-run -Werror 2>&1 | grep error: | head -n 40
[ "${PIPESTATUS[1]}" -eq 0 ]
