#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# nvcc_log.sh LOG NVCC ARGS...: compiles, and keeps what ptxas says of registers and spills (-Xptxas -v) in LOG, which
# tools/check_registers.py --build reads. All else that nvcc says is shown. With ccache, which keeps what ptxas says, too, a
# source that was compiled before takes no time.
log=$1
shift
[ -z "$(command -v ccache)" ] || set -- ccache "$@"
"$@" 2>"$log"
rc=$?
grep -vE '^ptxas info|^ *[0-9]+ bytes (stack frame|gmem)|^$' "$log" >&2
exit $rc
