#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Throughput, time to the first token and time per token against arrival rate under memory caps: bench/speed/caps.py says how.
#
#   bench/caps.sh [--quick] [--out FILE.csv] [--plot FILE.svg]
set -euo pipefail
cd "$(dirname "$0")/.."
exec python3 bench/speed/caps.py "$@"
