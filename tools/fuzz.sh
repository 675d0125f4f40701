#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tools/fuzz.sh [-t SECONDS] [-c CORPUS] [-r] [-l] [-s] [NAME...]
# Fuzzes the parsers (tests/fuzz): for each harness a corpus outside the tree grows for SECONDS (60;
# 0: it stays as it is), is minimised, and is replayed to count lines. Prints the line coverage of
# the parser's own files, which the table below names. Needs clang with llvm-profdata and llvm-cov.
#   -c CORPUS  folder of the corpora and findings; default: ~/.cache/pipit-fuzz
#   -r         the seeds of the tree alone: nothing grows, and no corpus is read
#   -l         names the lines that were not reached
#   -s         puts inputs of the corpus that the seeds lack an edge of into tests/fuzz/seeds
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=60
corpus="${XDG_CACHE_HOME:-$HOME/.cache}/pipit-fuzz"
lines=no
seed=no
grow=yes
while getopts t:c:rls option; do
    case $option in
    t) seconds=$OPTARG ;;
    c) corpus=$OPTARG ;;
    r) grow=no ;;
    l) lines=yes ;;
    s) seed=yes ;;
    *) sed -n '3,13s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
    esac
done
shift $((OPTIND - 1))

# name: the files whose lines count
sources() {
    case $1 in
    calls) echo engine/text/calls/*.c ;;
    client) echo client/lib/dispatch.c client/lib/event.c client/lib/report.c client/lib/text.c \
        link/arenas.c link/hello.c link/socket.c ;;
    config) echo base/options.c base/options_row.c base/options_args.c daemon/front/config.c ;;
    gguf) echo gguf/cursor.c gguf/gguf_keys.c gguf/gguf_parse.c gguf/gguf_tensors.c ;;
    jinja) echo engine/text/jinja/*.c ;;
    journal) echo daemon/front/journal_adopt.c daemon/front/journal.c ;;
    lane) echo proto/lane/record.c proto/lane/tlv.c ;;
    model) echo engine/model/{balance,center,hparams,hparams_experts,hparams_recur,model,skew}.c \
        engine/model/tensors{,_part,_ple,_rope,_scale}.c ;;
    policy) echo engine/kv/policy/{policy_parse,policy_print,rules}.c ;;
    request) echo daemon/worker/{ask,job,job_output,job_session,io,mapping}.c ;;
    session) echo daemon/worker/session.c ;;
    snapshot) echo engine/kv/seq/snapshot{,_check,_read,_write}.c ;;
    tokenizer) echo engine/text/{chat_render,detok,stop,tok_bpe,tok_charsmap,tok_merge,tok_pre,tok_spm,tok_unigram}.c ;;
    vocabulary) echo engine/text/{tok_keys,tok_special,tok_vocab}.c ;;
    zmq) echo proto/zmq/{arena,decode,fault,ranges,wire}.c daemon/gateway/items.c ;;
    *) echo "tools/fuzz.sh: no files are named for $1" >&2; return 1 ;;
    esac
}

names=("$@")
if [ ${#names[@]} = 0 ]; then
    for f in tests/fuzz/fuzz_*.c; do
        f=${f##*/fuzz_}
        names+=("${f%.c}")
    done
fi
[ -f build-fuzz/build.ninja ] ||
    CC=clang meson setup build-fuzz -Dfuzz=true -Dcuda=disabled -Db_lundef=false \
        -Db_sanitize=address,undefined >/dev/null
programs=("${names[@]/#/tests/fuzz/replay_}")
[ "$grow" = no ] || programs+=("${names[@]/#/tests/fuzz/fuzz_}")
nice ninja -C build-fuzz "${programs[@]}" >/dev/null
export LLVM_PROFILE_FILE=/dev/null
mkdir -p "$corpus/found"

# Few inputs that together have all edges of the folders: the first folder gets them.
merge() { # binary, to, from...
    "build-fuzz/tests/fuzz/fuzz_$1" -merge=1 -use_counters="$counters" "${@:2}" >/dev/null 2>&1
}

grow_corpus() {
    local dict=tests/fuzz/fuzz_$name.dict
    mkdir -p "$own"
    if [ "$seconds" != 0 ]; then
        ASAN_OPTIONS=allocator_may_return_null=1 "build-fuzz/tests/fuzz/fuzz_$name" \
            -max_total_time="$seconds" -timeout=20 -rss_limit_mb=4096 -print_final_stats=1 \
            -artifact_prefix="$corpus/found/$name-" $([ -f "$dict" ] && echo "-dict=$dict") \
            "$own" "$seeds" >"$corpus/$name.log" 2>&1 ||
            { echo "$name: a finding, see $corpus/$name.log"; failed=1; }
    fi
    rm -rf "$own.least"
    mkdir "$own.least"
    counters=1 merge "$name" "$own.least" "$own" "$seeds"
    rm -rf "$own"
    mv "$own.least" "$own"
    if [ "$seed" = yes ]; then
        counters=0 merge "$name" "$seeds" "$own"
    fi
}

# Of llvm-cov's listing, the files that are named: how many of their lines were reached.
count='
import os, re, sys
want = {os.path.realpath(f): [0, 0] for f in sys.argv[2:]}
missed, path = [], None
for line in sys.stdin:
    m = re.match(r"(/.*\.[ch]):$", line)
    if m:
        path = os.path.realpath(m[1])
        continue
    m = re.match(r" *(\d+)\| *([\d.]+[kMGT]?)\|", line)
    if m and path in want:
        want[path][0] += m[2] != "0"
        want[path][1] += 1
        if m[2] == "0":
            missed.append("%s:%s" % (os.path.relpath(path), line.strip()))
reached, lines = (sum(n[i] for n in want.values()) for i in (0, 1))
print("%5.1f %%  " % (100 * reached / max(lines, 1)) +
      ", ".join("%s %d/%d" % (os.path.basename(p), *n) for p, n in want.items()))
if sys.argv[1] == "yes":
    print("\n".join(missed))
'

failed=0
printf '%-12s %-9s %s\n' harness runs 'lines reached, in all and of each file'
for name in "${names[@]}"; do
    seeds=tests/fuzz/seeds/$name
    own=$corpus/$name
    inputs=("$seeds")
    rm -f "$corpus/$name.log"
    if [ "$grow" = yes ]; then
        grow_corpus
        inputs+=("$own")
    fi
    LLVM_PROFILE_FILE=$corpus/$name.profraw "build-fuzz/tests/fuzz/replay_$name" \
        "${inputs[@]}" >/dev/null
    llvm-profdata merge -sparse "$corpus/$name.profraw" -o "$corpus/$name.profdata"
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$corpus/$name.log" 2>/dev/null || true)
    printf '%-12s %-9s ' "$name" "${runs:--}"
    # shellcheck disable=SC2046
    llvm-cov show -instr-profile="$corpus/$name.profdata" "build-fuzz/tests/fuzz/replay_$name" |
        python3 -c "$count" "$lines" $(sources "$name")
done
exit "$failed"
