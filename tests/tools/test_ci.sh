#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tools/test.sh with stand-ins for ninja, meson and what it installs: what it counts, that a build which fails is told,
# that a build which is not ready is taken over at normal priority, and that a test which failed is run again.
# Usage: test_ci.sh TOOLS
set -uo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() { echo "FAILED: $*" && cat "$dir/out" "$dir/log" && exit 1; }

mkdir -p "$dir/bin" "$dir/tools"
cp "$1/test.sh" "$dir/tools"
for name in setup.sh fetch_model.sh check_layers.py check_style.py check_format.sh check_registers.py check_sass.py; do
    printf '#!/bin/sh\n' >"$dir/tools/$name"
done
printf '#!/bin/sh\n' >"$dir/bin/nvcc"
# ninja -C DIR: takes TENTHS_OF_NINJA of a second, then fails where DIR is BROKEN.
cat >"$dir/bin/ninja" <<'END'
#!/usr/bin/env bash
name=$(basename "$2")
trap 'echo "$name ended" >>"$DIR/log"; exit 1' TERM
echo "$name $(chrt --pid $$ | sed -n 's/.*policy: SCHED_//p')" >>"$DIR/log"
for ((i = 0; i < ${TENTHS_OF_NINJA:-2}; i++)); do sleep 0.1; done
[ "$name" != "${BROKEN:-}" ] || { echo "error: broken" && exit 1; }
END
# meson setup DIR, meson test -C DIR: one test passes, one is skipped; with BAD the first run of gcc's fails.
cat >"$dir/bin/meson" <<'END'
#!/usr/bin/env bash
if [ "$1" = setup ]; then
    mkdir -p "$2/meson-logs" && touch "$2/build.ninja"
    for option; do
        [ "${option#-Dgpu_archs=}" = "$option" ] || echo "$(basename "$2")$again sm_${option#*=}" >>"$DIR/log"
        [ "$option" != --reconfigure ] || again=" again"
    done
    exit 0
fi
sleep 0.5
first=OK
if [ -n "${BAD:-}" ] && [ ! -e "$DIR/bad" ]; then
    touch "$DIR/bad"
    first=FAIL
fi
printf '{"name": "pipit / a", "result": "%s"}\n{"name": "pipit / b", "result": "SKIP"}\n' $first >"$3/meson-logs/testlog.json"
[ $first = OK ]
END
cat >"$dir/bin/python3" <<END
#!/bin/sh
[ "\$1" != -m ] || exit 1 # pip: no network
exec $(command -v python3) "\$@"
END
chmod +x "$dir"/bin/* "$dir"/tools/*

# run NAME=VALUE...: the script's exit code, in new folders; ARGS are its arguments. run_on: in the folders that are there.
run_on() {
    rm -rf "$dir/log" "$dir/bad"
    env PIPIT_TURNS= "$@" DIR="$dir" PATH="$dir/bin:$PATH" PIPIT_TEST_DIR= PIPIT_SMOLLM2= PIPIT_AARCH64=1 \
        bash -c '"$0" $ARGS' "$dir/tools/test.sh" >"$dir/out" 2>&1
}
run() {
    rm -rf "$dir/build-test"
    run_on "$@"
}
said() { grep -q "$1" "$dir/out" || fail "no line says: $1"; }
did() { grep -qx "$1" "$dir/log" || fail "nothing did: $1"; }

tests=3 # one of gcc, clang and tsan each, with as many skips; elsewhere than on x86-64 aarch64 is one skip more
skips=4
[ "$(uname -m)" != x86_64 ] || tests=5 skips=5

run A=1 || fail "all well: exit $?"
said "^$((tests + 6)) passed, 0 failed, $skips skipped$"
did "clang IDLE"
run PIPIT_TURNS=1 PIPIT_PHASE=$((0x3ffffff)) || fail "TSan's third: exit $?"
said "^SKIP    cuda-order, aarch64: "
said "^SKIP    cuda: "
said "^$((3 + 3)) passed, 0 failed, 5 skipped$"
did "tsan IDLE"
run PIPIT_TURNS=1 PIPIT_PHASE=$((0x4000000)) || fail "the GPU's third: exit $?"
said "^SKIP    cuda-order, aarch64: "
said "^SKIP    tsan: "
said "^$((2 + 6)) passed, 0 failed, 4 skipped$"
did "gcc sm_90"
run_on ARGS="--arch 87" PIPIT_TURNS=1 PIPIT_PHASE=$((0x4100000)) || fail "one architecture: exit $?"
said "^== CUDA for sm_87$"
did "gcc again sm_87"
run_on ARGS="--arch 87" PIPIT_TURNS=1 PIPIT_PHASE=$((0x4200000)) || fail "the same again: exit $?"
grep -q "^gcc .*sm_" "$dir/log" && fail "configured anew with the same options"
run_on PIPIT_TURNS=1 PIPIT_PHASE=$((0x4100000)) || fail "the other architecture: exit $?"
said "^== CUDA for sm_80$"
turn=$(sed -n '/^archs=/,/^$/p' "$1/test.sh")
archs=$(for ((i = 0; i < 16; i++)); do
    arch='' PIPIT_PHASE=$((0x4000000 + i * 0x100000))
    eval "$turn" && echo "$arch"
done | sort -n | uniq -c | tr -s ' \n' ' ')
[ "$archs" = " 2 80 2 87 2 89 6 90 4 100 " ] || fail "turns of architectures: $archs"
run PIPIT_TURNS=1 PIPIT_PHASE=$((0x8000000)) || fail "AArch64's third: exit $?"
said "^SKIP    tsan: "
said "^SKIP    cuda: "
said "^$((tests + 2)) passed, 0 failed, $((skips + 1)) skipped$"
run TENTHS_OF_NINJA=12 || fail "slow builds: exit $?"
said "^$((tests + 6)) passed, 0 failed, $skips skipped$"
did "clang ended"
did "clang OTHER"
run BROKEN=tsan && fail "a build that fails: exit 0"
said "^FAILED  tsan: build$"
said "^$((tests + 5)) passed, 1 failed, $((skips - 1)) skipped$"
run BROKEN=gcc && fail "the first build fails: exit 0"
said "^FAILED  gcc: build$"
run BAD=1 || fail "a test that passes alone: exit $?"
said "^AGAIN   gcc: a failed, running it alone$"
said " 0 failed, $skips skipped$"
echo "test.sh: counts, builds that are slow or fail, a test run again"
