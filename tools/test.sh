#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing, builds every configuration, runs all tests, and ends with one line:
#   N passed, N failed, N skipped
# Usage: tools/test.sh [--quick] [--arch N]
#   --quick: only the gcc configuration and the style checks
#   --arch: the GPU's compiler makes sm_N, not what the commit's number says
# PIPIT_TURNS=1: a commit runs one third of what takes longest: TSan, the GPU's compiler, or AArch64 and CUDA in order.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

quick=
arch=
while [ $# -gt 0 ]; do
    case $1 in
    --quick) quick=1 ;;
    --arch) arch=${2:?} && shift ;;
    *) echo "unknown: $1" >&2 && exit 2 ;;
    esac
    shift
done
out=${PIPIT_TEST_DIR:-build-test}
mkdir -p "$out"
passed=0
failed=0
skipped=0

tools/setup.sh || exit 1

# The model is used where it is there, and independent implementations are compared with; without a network
# those tests skip and say so. They come beside what follows.
oracles=$PWD/$out/oracles
fetch() {
    if [ -z "${PIPIT_SMOLLM2:-}" ]; then
        tools/fetch_model.sh >"$out/model" || : >"$out/model"
    fi
    if [ ! -f "$oracles/.complete" ] &&
        python3 -m pip install --quiet --disable-pip-version-check --target "$oracles" gguf tokenizers jinja2 \
            nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm \
            >"$out/oracles.log" 2>&1; then
        touch "$oracles/.complete"
    fi
}

# Work in the background has a process group of its own, so that all of it ends with this script.
fetching=
ahead=
end_group() { [ -z "$1" ] || kill -TERM -- "-$1" 2>/dev/null; }
trap 'end_group "$fetching"; end_group "$ahead"' EXIT
set -m
fetch </dev/null &
fetching=$!
set +m

# What is sampled (tests/kernels/check.h) begins elsewhere for each commit.
if [ -z "${PIPIT_PHASE:-}" ]; then
    PIPIT_PHASE=$((0x0$(git rev-parse --short=7 HEAD 2>/dev/null | cut -c1-7 || true)))
fi
export PIPIT_PHASE

# The GPU's compiler makes one architecture of those that have tables, most often the two whose code is least like the
# others': sm_90 has wgmma, and for sm_100 registers are shared out anew.
archs=(90 80 100 90 87 90 100 89)
[ -n "$arch" ] || arch=${archs[(PIPIT_PHASE >> 20) % ${#archs[@]}]}

# With PIPIT_TURNS a commit runs one third of what takes longest (0: TSan, 1: the GPU's compiler, 2: AArch64 and CUDA
# in order), whichever its number's highest digit says: the lower ones choose cases (tests/turn.h).
turn=
[ -z "${PIPIT_TURNS:-}" ] || turn=$(((PIPIT_PHASE >> 24) % 3))
has_turn() { [ -z "$turn" ] || [ "$turn" -eq "$1" ]; }
others_turn() {
    echo "SKIP    $1: the turn of other commits (PIPIT_TURNS)"
    skipped=$((skipped + 1))
}

# The libraries of another CPU come in the background, too, while the style is looked at.
aarch64=
installing=
no_aarch64='PIPIT_AARCH64=1 lets this add the architecture arm64 to dpkg and install its libraries'
if ! has_turn 2; then
    : # others_turn says so
elif [ -n "$quick" ] || [ "$(uname -m)" != x86_64 ]; then
    no_aarch64="cross-compiled on x86-64 only, this is $(uname -m)"
elif [ -n "${PIPIT_AARCH64:-}" ] || dpkg --print-foreign-architectures 2>/dev/null | grep -qx arm64; then
    tools/setup.sh --aarch64 >"$out/aarch64.install.log" 2>&1 </dev/null &
    installing=$!
fi

# Traces need lines; what variables hold is not asked here, and gcc takes minutes to follow them through
# functions inlined into one (check_attention.c with sanitizers: 150 s instead of 8).
lines=(-Dc_args=-g1 -Dcpp_args=-g1)

note() { echo "== $*"; }

# run_ahead NAME COMMAND...: what check() finds done.
run_ahead() {
    "${@:2}" >"$out/$1.log" 2>&1
    echo $? >"$out/$1.rc"
}

# check NAME COMMAND...: one test that is not meson's.
check() {
    local name=$1 rc
    [ -f "$out/$name.rc" ] || run_ahead "$@"
    rc=$(cat "$out/$name.rc")
    rm -f "$out/$name.rc"
    case $rc in
    0) passed=$((passed + 1)) && echo "ok      $name" ;;
    77) skipped=$((skipped + 1)) && echo "SKIP    $name: $(tail -n 1 "$out/$name.log")" ;;
    *) failed=$((failed + 1)) && echo "FAILED  $name" && tail -n 40 "$out/$name.log" ;;
    esac
}

# build NAME [meson options]: a configuration, with all warnings as errors, or what of it is missing. A folder with other
# options is configured anew.
# NAME.built says that it ended, NAME.why that it failed.
build() {
    local dir=$out/$1 began=$SECONDS again=
    [ -f "$dir/build.ninja" ] || rm -rf "$dir"
    rm -f "$out/$1.why"
    [ ! -d "$dir" ] || [ "$(cat "$out/$1.options" 2>/dev/null)" = "$*" ] || again=--reconfigure
    [ -d "$dir" ] && [ -z "$again" ] || rm -f "$out/$1.options" # a setup that is broken off leaves none
    if { [ ! -d "$dir" ] || [ -n "$again" ]; } &&
        ! meson setup "$dir" ${again:+"$again"} "${lines[@]}" "${@:2}" >"$out/$1.setup.log" 2>&1; then
        tail -n 20 "$out/$1.setup.log" >"$out/$1.why"
    elif ! echo "$*" >"$out/$1.options" || ! ninja -C "$dir" ${targets[@]+"${targets[@]}"} >"$out/$1.build.log" 2>&1; then
        grep -E 'error|warning|FAILED' "$out/$1.build.log" | head -n 40 >"$out/$1.why"
    fi
    echo $((SECONDS - began)) >"$out/$1.built"
}

build_named() {
    local targets=() linker=()
    case $1 in
    # The host side of CUDA over a device that computes nothing: with sanitizers.
    gcc) build gcc -Dgpu_archs="${cuda:+$arch}" -Dfake=false -Dorder="$(has_turn 2 && echo true || echo false)" ;;
    # Another compiler finds other warnings and makes other code. Here with sanitizers, which it
    # compiles in less time.
    clang)
        # lld links two hundred programs in half of the time.
        [ -z "$(command -v ld.lld)" ] || linker=(-Dc_link_args=-fuse-ld=lld -Dcpp_link_args=-fuse-ld=lld)
        CC=clang CXX=clang++ build clang -Db_sanitize=address,undefined -Db_lundef=false ${linker[@]+"${linker[@]}"}
        ;;
    tsan)
        targets=(tests/unit/pool_race daemon/front/pipitd daemon/worker/pipit-engine tools/pipit-skew)
        build tsan -Db_sanitize=thread -Doptimization=1
        ;;
    aarch64)
        targets=(tests/kernels/check_{bits,soft,attention,cut,expect,kv_slots,matmul,norm,recur,rope_store,rows,select,predict}
            tests/golden/test_stories)
        build aarch64 --cross-file tools/cross/aarch64.ini -Ddaemon=disabled -Dcuda=disabled
        ;;
    cuda) # not a configuration
        run_ahead cuda ninja -C "$out/gcc" kernels/cuda/libpipit-cuda.so
        run_ahead registers tools/check_registers.py --build "$out/gcc"
        run_ahead sass tools/check_sass.py --module "$out/gcc/kernels/cuda/libpipit-cuda.so"
        echo >"$out/cuda.built"
        ;;
    esac
}

# Tests wait and sleep: what they leave of the processors builds the configurations that come after, at the
# priority of idle work.
begin_ahead() {
    local name
    set -m
    {
        chrt --idle --pid 0 "$BASHPID"
        for name in clang $tsan $aarch64 $cuda; do
            [ -f "$out/$name.built" ] || build_named "$name"
        done
    } </dev/null &
    ahead=$!
    set +m
}

# ninja ends its compilers and removes what they had half made.
end_ahead() {
    local i
    end_group "$ahead"
    wait "$ahead" 2>/dev/null
    for ((i = 0; i < 100; i++)); do
        kill -0 -- "-$ahead" 2>/dev/null || break
        sleep 0.1
    done
    ahead=
}

# config NAME[,MORE]: meson's tests of a configuration. Which tests a configuration leaves out is said in
# CONTRIBUTING.md. MORE distinguishes runs of one build.
config() {
    local name=${1%%,*} began
    local dir=$out/$name
    note "configuration $1"
    rm -f "$dir/meson-logs/testlog.json"
    if [ ! -f "$out/$name.built" ]; then # nothing else is left to do
        [ -z "$ahead" ] || end_ahead
        build_named "$name"
    fi
    if [ -f "$out/$name.why" ]; then
        cat "$out/$name.why"
        echo "FAILED  $1: build"
        failed=$((failed + 1))
        return
    fi
    [ -n "$quick$ahead" ] || begin_ahead
    began=$SECONDS
    meson test -C "$dir" --no-rebuild --print-errorlogs --timeout-multiplier 2 --num-processes 3 ${suites[@]+"${suites[@]}"} \
        >"$out/$1.test.log" 2>&1
    local rc=$? again=()
    # Some tests have time limits, and machines are shared: what failed is run once more, alone. It is said.
    if [ "$rc" -ne 0 ]; then
        mapfile -t again < <(outcomes "$dir" name)
        grep -vE ' (OK|SKIP) ' "$out/$1.test.log" | tail -n 60
        for name in "${again[@]}"; do
            echo "AGAIN   $1: $name failed, running it alone"
        done
        cp "$dir/meson-logs/testlog.json" "$out/$1.first.json"
        if [ "${#again[@]}" -gt 0 ]; then
            [ -z "$ahead" ] || end_ahead
            meson test -C "$dir" --no-rebuild --print-errorlogs --timeout-multiplier 2 --num-processes 1 "${again[@]}" \
                >"$out/$1.again.log" 2>&1
            rc=$?
            [ "$rc" -eq 0 ] || grep -vE ' (OK|SKIP) ' "$out/$1.again.log" | tail -n 80
        fi
    fi
    local bad ok skip all
    bad=$(outcomes "$dir" name | grep -c .)
    if [ "${#again[@]}" -gt 0 ]; then
        cp "$out/$1.first.json" "$dir/meson-logs/testlog.json"
    fi
    read -r all skip < <(outcomes "$dir" count)
    if [ "$rc" -ne 0 ] && [ "$bad" -eq 0 ]; then
        bad=1 # meson itself failed
    fi
    ok=$((all - skip - bad))
    passed=$((passed + ok))
    failed=$((failed + bad))
    skipped=$((skipped + skip))
    grep -E ' SKIP ' "$out/$1.test.log" || true
    echo "$1: $ok passed, $bad failed, $skip skipped; built in $(cat "$out/${1%%,*}.built") s, tested in $((SECONDS - began)) s"
}

# outcomes DIR name|count: from meson's log, the names of what did not pass, or how many ran and were skipped.
outcomes() {
    python3 - "$1/meson-logs/testlog.json" "$2" <<'PY'
import json, os, sys
rows = [json.loads(line) for line in open(sys.argv[1])] if os.path.exists(sys.argv[1]) else []
if sys.argv[2] == "count":
    print(len(rows), sum(r["result"] == "SKIP" for r in rows))
else:
    for r in rows:
        if r["result"] not in ("OK", "SKIP", "EXPECTEDFAIL"):
            print(r["name"].split(" / ", 1)[-1])
PY
}

# What a sanitizer finds ends the process, also where a test would not look for it.
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-halt_on_error=1:print_stacktrace=1}

note "PIPIT_PHASE=$PIPIT_PHASE"
note "style"
rm -f "$out"/*.rc
check layers tools/check_layers.py
check style tools/check_style.py
check format tools/check_format.sh
if [ -n "$installing" ]; then
    if wait "$installing"; then
        aarch64=aarch64
    else
        no_aarch64=$(tail -n 1 "$out/aarch64.install.log")
    fi
fi

suites=()
tsan=$(has_turn 0 && echo tsan)
cuda=$(has_turn 1 && command -v nvcc >/dev/null && echo cuda)
rm -f "$out"/*.built
build_named gcc
wait "$fetching"
fetching=
PIPIT_SMOLLM2=${PIPIT_SMOLLM2:-$(cat "$out/model")}
export PIPIT_SMOLLM2
[ -f "$oracles/.complete" ] && export PYTHONPATH=$oracles
config gcc
if [ -z "$quick" ]; then
    suites=(--no-suite slow)
    config clang
    # Criterion does not start under this sanitizer: the programs that have threads and a main of their own.
    # Of the daemon, the real processes under a mixed load.
    suites=(pool_race races)
    if [ -n "$tsan" ]; then config tsan; else others_turn tsan; fi

    # Another CPU, emulated: its kernels and a whole model, first with all that they know of, then on
    # one without dot products.
    if ! has_turn 2; then
        others_turn "cuda-order, aarch64"
    elif [ -z "$aarch64" ]; then
        echo "SKIP    aarch64: $no_aarch64"
        skipped=$((skipped + 1))
    else
        suites=('bits cpu' 'soft cpu' stories_cpu)
        for name in attention cut expect kv_slots matmul norm recur rope_store rows select predict; do
            suites+=("$name cpu")
        done
        QEMU_CPU=max config aarch64
        suites=('bits cpu' 'norm cpu' stories_cpu)
        QEMU_CPU=cortex-a72 config aarch64,cortex-a72
    fi
fi

# The kernels ran above, emulated.
if ! has_turn 1; then
    others_turn cuda
elif [ -n "$cuda" ]; then
    note "CUDA for sm_$arch"
    [ -f "$out/cuda.built" ] || [ -z "$ahead" ] || end_ahead
    check cuda ninja -C "$out/gcc" kernels/cuda/libpipit-cuda.so
    check registers tools/check_registers.py --build "$out/gcc"
    check sass tools/check_sass.py --module "$out/gcc/kernels/cuda/libpipit-cuda.so"
else
    echo "SKIP    cuda: no nvcc on this machine, so no CUDA code was compiled for a GPU"
    skipped=$((skipped + 1))
fi

echo
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
