#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Resident memory of a daemon under load against its plan: bench/speed/memory.py says how.
#
#   bench/memory.sh [--model FILE] [--tokens N] [--out FILE.csv]
set -euo pipefail
cd "$(dirname "$0")/.."
exec python3 bench/speed/memory.py "$@"
