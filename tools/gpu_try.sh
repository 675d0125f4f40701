#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# An archive of tools/gpu_pack.sh in a system that has nothing but a C library and a shell, with the toolkit's stub for a
# driver: what can be shown of it without a GPU. Run as root.
#
#   every program starts, and neither it nor the module lacks a library, with those that the archive lends
#   gpu_check.sh prints the items of each call
#   pipit-bench and pipitd open the module and say why it finds no device, with the stub and without any driver
#
# Usage: tools/gpu_try.sh ARCHIVE ROOT [STUB]
#   ROOT   as of: debootstrap --variant=minbase bookworm ROOT
#   STUB   default /usr/local/cuda/lib64/stubs/libcuda.so
set -euo pipefail
[ $# -ge 2 ] || { sed -n '3,13s/^# \{0,1\}//p' "$0" && exit 2; }
archive=$1 root=$2 stub=${3:-/usr/local/cuda/lib64/stubs/libcuda.so}

rm -rf "$root/try"
mkdir -p "$root/try/driver"
tar -C "$root/try" -xJf "$archive" # a bare system has neither xz nor python3
cp -L "$stub" "$root/try/driver/libcuda.so.1"

cat >"$root/try/in_root.sh" <<'END'
set -uo pipefail
cd /try
failed=0
bad() { echo "FAILED  $*" && failed=$((failed + 1)); }
# without NAME COMMAND...: it fails, and says that there is no driver.
without() {
    local name=$1 said
    shift
    if said=$(timeout 60 "$@" 2>&1); then
        bad "$name: exit 0 without a device"
    elif ! grep 'no NVIDIA driver is loaded' <<<"$said" | sed "s/^/$name: /" | grep .; then
        bad "$name: it does not say that there is no driver:" && tail -n 5 <<<"$said"
    fi
}

ls gpu/lib | tr '\n' ' ' && echo
gpu/tools/gpu_check.sh --only info 1 results >/dev/null
tar -xzOf results/call-1.tgz call-1/log/info.log | grep 'not found' && bad "a library is missing"
for call in 1 2 3 4 5; do
    gpu/tools/gpu_check.sh --dry-run "$call" results >dry.txt || bad "dry run of call $call"
    echo "call $call: $(wc -l <dry.txt) items"
done

# As gpu_check.sh lends libraries: those only that the system lacks.
mkdir -p lent
for lib in gpu/lib/*; do
    ldconfig -p | grep -q "^[[:space:]]*$(basename "$lib") " || ln -sf "$PWD/$lib" lent/
done
export LD_LIBRARY_PATH=$PWD/lent
n=0
for program in $(find gpu -type f -perm -u+x ! -name '*.so*' ! -name '*.sh' ! -name '*.py'); do
    timeout 2 "$program" --help >help.txt 2>&1 # checks know no --help: they begin
    rc=$?
    n=$((n + 1))
    if [ $rc -ge 126 ] || grep -qE 'error while loading|version .GLIBC' help.txt; then
        bad "$program: exit $rc: $(tail -n 1 help.txt)"
    fi
done
echo "$n programs start"

module=$PWD/gpu/kernels/cuda/libpipit-cuda.so
for driver in "$PWD/driver" ''; do
    export LD_LIBRARY_PATH=$driver:$PWD/lent
    of=${driver:+with the stub}
    of=${of:-without}
    without "pipit-bench, $of" gpu/bench/pipit-bench --model gpu/tests/data/cache_model.gguf --backend "$module" \
        --prefill 16 --depth '' -r 1
    without "pipit-kbench, $of" gpu/bench/pipit-kbench --module "$module" --small
    without "pipitd, $of" gpu/daemon/front/pipitd --model gpu/tests/data/stories260K.gguf --backend cuda \
        --runtime-dir "$PWD/run${driver:+-stub}" --gateway no
done
[ "$failed" -eq 0 ] && echo "all shown"
END
# pipitd reads /proc; the mount goes with its namespace.
unshare --mount sh -c 'mount -t proc proc "$1/proc" && exec chroot "$@"' sh "$root" \
    /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TMPDIR=/tmp bash /try/in_root.sh
