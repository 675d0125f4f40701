#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The Debian packages in a booted systemd: installed in a container, asked by users in and outside
# group pipit, every process killed, reloaded, inspected, attacked from under the units' sandbox,
# removed again. Prints one line a check and ends with "N passed, N failed, N skipped".
#
# The container's root (debootstrap, about 250 MB) is kept in ${XDG_CACHE_HOME:-~/.cache}/pipit and never
# written to: each run boots it under an overlay in memory. Packages are built unless those in
# build-deb (or $PIPIT_DEBS) are newer than the source. Exits 77 without root, systemd-nspawn,
# debootstrap or, for the first run, a network.
# Usage: tests/e2e/booted.sh [--log FILE]
#   --log FILE: also writes its lines there, the commit first
set -uo pipefail
if [ "${1:-}" = --log ] && [ $# -eq 2 ]; then
    log=$(realpath "$2") || exit 2
elif [ $# -ne 0 ]; then
    echo "usage: booted.sh [--log FILE]" >&2
    exit 2
fi
cd "$(dirname "$0")/../.."
if [ -n "${log:-}" ]; then
    echo "commit $(git rev-parse HEAD)$(git diff --quiet HEAD -- || echo ' and changes'), $(date -u +%F), tests/e2e/booted.sh, $(nproc) CPUs${PIPIT_DEBS:+, packages of \$PIPIT_DEBS}" >"$log"
    exec > >(tee -a "$log")
fi

cache=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/pipit
debs=${PIPIT_DEBS:-build-deb}
python=/usr/bin/python3 # the one that Debian's packages of pyzmq and protobuf belong to
passed=0
failed=0
skipped=0
nspawn=
leader=
tmp=

skip() {
    echo "SKIP: booted.sh: $*" >&2
    echo "0 passed, 0 failed, 1 skipped"
    exit 77
}
die() {
    echo "booted.sh: $*" >&2
    exit 1
}
note() { echo "== $*"; }
ok() {
    passed=$((passed + 1))
    echo "ok      $*"
}
bad() {
    failed=$((failed + 1))
    echo "FAILED  $*"
}

# check NAME COMMAND...: passes when the command does; what it said is shown when not.
check() {
    local name=$1
    shift
    if "$@" >"$tmp/said" 2>&1; then
        ok "$name"
    else
        bad "$name (exit $?)"
        sed 's/^/        /' "$tmp/said" | tail -n 25
    fi
}

# box COMMAND...: in the container, as root; as USER COMMAND...: as that user.
box() {
    nsenter -t "$leader" -a -- env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        HOME=/root LANG=C.UTF-8 "$@" </dev/null
}
as() {
    local user=$1
    shift
    box runuser -u "$user" -- "$@"
}
property() { box systemctl show -p "$2" --value "$1"; }
until_true() { # SECONDS COMMAND...
    local end=$(($(date +%s) + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ "$(date +%s)" -lt "$end" ] || return 1
        sleep 0.05
    done
}
is() { # WANT COMMAND...
    local want=$1 got
    shift
    got=$("$@")
    [ "$got" = "$want" ] || { echo "got '$got', not '$want'"; return 1; }
}
refused() { # EXIT TEXT COMMAND...: fails with that code and says that
    local code=$1 text=$2 rc
    shift 2
    "$@" >"$tmp/refusal" 2>&1
    rc=$?
    cat "$tmp/refusal"
    [ "$rc" -eq "$code" ] && grep -q -- "$text" "$tmp/refusal"
}
not() { ! "$@"; }
# The pid, as this side of the container knows it, of a process by its name.
pid_of() { "$python" tests/e2e/booted.py pid "$leader" "$1"; }

finish() {
    if [ -n "$leader" ]; then
        kill -s RTMIN+4 "$leader" 2>/dev/null # power off
        for _ in $(seq 100); do
            kill -0 "$nspawn" 2>/dev/null || break
            sleep 0.1
        done
    fi
    [ -n "$nspawn" ] && kill -9 "$nspawn" 2>/dev/null
    [ -n "$tmp" ] && rm -rf "$tmp"
}
trap finish EXIT

# ---- preparations ----

[ "$(id -u)" -eq 0 ] || skip "needs root, to boot a container"
for tool in systemd-nspawn debootstrap nsenter; do
    command -v "$tool" >/dev/null || skip "$tool is not installed (apt-get install systemd-container debootstrap)"
done
"$python" -c 'import zmq, google.protobuf' 2>/dev/null || skip "python3-zmq or python3-protobuf is not installed"
tmp=$(mktemp -d "${TMPDIR:-/tmp}/pipit-booted.XXXXXX")

newest=$(git ls-files -z 2>/dev/null | xargs -0 stat -c %Y 2>/dev/null | sort -n | tail -n 1)
built=$(stat -c %Y "$debs"/pipit_*.deb 2>/dev/null | head -n 1)
if [ -z "${PIPIT_DEBS:-}" ] && [ "${built:-0}" -lt "${newest:-0}" ]; then
    note "building the packages"
    deploy/build_deb.sh "$debs" >"$tmp/build" 2>&1 || { cat "$tmp/build" >&2; die "the packages cannot be built"; }
fi
mkdir "$tmp/share"
cp "$debs"/pipit_*.deb "$debs"/libpipit0_*.deb tests/data/stories260K.gguf "$tmp/share/" || die "no packages in $debs"
"$python" tests/e2e/booted.py next "$(ls "$debs"/pipit_*.deb)" "$tmp/share/pipit.next" || die "the next version's package cannot be made"
cc -std=c17 -D_GNU_SOURCE -O1 -o "$tmp/share/probe" tests/e2e/probe.c || die "the probe cannot be compiled"

# What the packages need, so that the container needs no network.
suite=$(. /etc/os-release && echo "${VERSION_CODENAME:-bookworm}")
mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 'Codename: '"$suite" 2>/dev/null | head -n 1)
needs=$(for d in "$tmp"/share/*.deb; do dpkg-deb -f "$d" Depends | tr ',' '\n'; done |
    sed 's/[(|].*//; s/:any//; s/ //g' | grep -v '^libpipit' | sort -u | paste -sd, -)
root=$cache/booted-$suite
want="systemd,systemd-sysv,dbus,$needs"
if [ "$(cat "$root.packages" 2>/dev/null)" != "$want" ]; then
    note "making a container in $root"
    rm -rf "$root" "$root.packages"
    mkdir -p "$cache"
    if ! debootstrap --variant=minbase --include="$want" "$suite" "$root" ${mirror:+"$mirror"} >"$tmp/debootstrap" 2>&1; then
        tail -n 5 "$tmp/debootstrap" >&2
        rm -rf "$root"
        skip "debootstrap failed: no network?"
    fi
    echo "$want" >"$root.packages"
fi

note "booting"
systemd-nspawn --quiet --directory="$root" --volatile=overlay --private-network --register=no --keep-unit \
    --machine="pipit-booted-$$" --bind-ro="$tmp/share:/mnt" --boot >"$tmp/console" 2>&1 &
nspawn=$!
for _ in $(seq 100); do
    leader=$(pgrep -P "$nspawn" -x systemd | head -n 1)
    [ -n "$leader" ] && break
    kill -0 "$nspawn" 2>/dev/null || break
    sleep 0.1
done
[ -n "$leader" ] || { cat "$tmp/console" >&2; skip "systemd-nspawn cannot boot here"; }
until_true 60 box systemctl is-active --quiet multi-user.target || { tail "$tmp/console" >&2; skip "systemd did not come up in the container"; }

# ---- installation ----

note "installation"
box useradd -m alice
box useradd -m mallory
check "apt installs the packages without a network" box env DEBIAN_FRONTEND=noninteractive sh -c 'apt-get install -y /mnt/*.deb'
box usermod -aG pipit alice
check "the socket of instance default answers after the installation" is active box systemctl is-active pipitd@default.socket
check "and is enabled" is enabled box systemctl is-enabled pipitd@default.socket
check "the daemon is not running yet" is inactive box systemctl is-active pipitd@default.service
check "without a model the first question says what is missing" \
    refused 6 /var/lib/pipit/model.gguf as alice pipit ask --raw --timeout 60 hello
check "the daemon stays, to say it again" is active box systemctl is-active pipitd@default.service
check "its status says it too" until_true 10 box sh -c 'systemctl show -p StatusText pipitd@default.service | grep -q "cannot be loaded"'
check "it did not start again and again" is 0 property pipitd@default.service NRestarts
box install -m 0644 /mnt/stories260K.gguf /var/lib/pipit/model.gguf
check "once the file is there, it is loaded" until_true 60 as alice pipit ask --raw -n 1 hello
box sh -c 'printf "backend = ref\nthreads = 1\nctx = 256\nsequences = 4\n" >>/etc/pipit/default.conf'
box systemctl stop pipitd@default.service >"$tmp/said" 2>&1
check "systemctl start pipitd@default.socket" box systemctl start pipitd@default.socket
check "modes: folder" is "750 pipit pipit" box stat -c '%a %U %G' /run/pipit/default
check "modes: lane.sock" is "660 root pipit" box stat -c '%a %U %G' /run/pipit/default/lane.sock
check "modes: gateway.sock" is "600 pipit-gateway pipit-gateway" box stat -c '%a %U %G' /run/pipit/default/gateway.sock
check "modes: zmq.sock" is "660 pipit-gateway pipit" box stat -c '%a %U %G' /run/pipit/default/zmq.sock

# ---- who may ask ----

note "users"
# The prompt is in a file: command lines are written to the journal, by runuser.
ask=(pipit ask --raw --temp 0 -n 40 --timeout 60)
box sh -c 'echo "Once upon a time, there was a xylophone" >/run/prompt'
prompt=@/run/prompt
check "a member of group pipit asks, and so starts the daemon" as alice "${ask[@]}" "$prompt"
story=$(as alice "${ask[@]}" "$prompt" 2>/dev/null)
check "the answer is a text" test "${#story}" -gt 40
check "somebody outside the group is refused" refused 3 "may not open it" as mallory "${ask[@]}" "$prompt"
check "the gateway's socket is closed to members" refused 2 "ermission denied" as alice sh -c '>/run/pipit/default/gateway.sock'
check "pipit doctor finds nothing wrong" as alice pipit doctor

# ---- deaths ----

note "deaths"
zmq() { "$python" tests/e2e/booted.py "$1" "$leader" "${@:2}"; }
sockets_there() { box sh -c 'cd /run/pipit/default && test -S lane.sock -a -S gateway.sock -a -S zmq.sock'; }
check "a ZeroMQ client is answered" zmq ping
gateway=$(property pipit-gateway@default.service MainPID)
check "the gateway sees its socket" box test -S "/proc/$gateway/root/run/pipit/default/zmq.sock"
check "and no model" not box test -e "/proc/$gateway/root/var/lib/pipit/model.gguf"

front=$(property pipitd@default.service MainPID)
check "the engine is killed" kill -9 "$(pid_of pipit-engine)"
check "asked at once, the daemon answers the same" is "$story" as alice "${ask[@]}" "$prompt"
check "it is the same daemon" is "$front" property pipitd@default.service MainPID

check "the daemon is killed" kill -9 "$(pid_of pipitd)"
check "its sockets stay" sockets_there
check "asked at once, it answers the same" is "$story" as alice "${ask[@]}" "$prompt"
check "it is another daemon" not is "$front" property pipitd@default.service MainPID
check "a ZeroMQ client is answered by it" zmq ping

# A request that the engine has (it stands still, so that there is time) when the daemon is killed.
running() { box pipit status --json | "$python" -c 'import json,sys; sys.exit(json.load(sys.stdin)["requests"]["running"] < 1)'; }
check "systemd keeps the daemon's journal" is 1 property pipitd@default.service NFileDescriptorStore
kill -STOP "$(pid_of pipit-engine)"
as alice "${ask[@]}" "$prompt" >"$tmp/survived" 2>"$tmp/survived.err" &
asked=$!
check "a request runs" until_true 10 running
front=$(property pipitd@default.service MainPID)
check "the daemon is killed under it" kill -9 "$(pid_of pipitd)"
check "the client notices nothing" wait "$asked"
check "and gets the same answer" is "$story" cat "$tmp/survived"
check "from another daemon" not is "$front" property pipitd@default.service MainPID
check "which says that it took the request over" box sh -c 'journalctl --sync; journalctl -u pipitd@default.service | grep -q "took over [1-9]"'

zmq kills 50 >"$tmp/kills" 2>&1
killed=$?
check "the gateway is killed 50 times in a row, each time back in under $(sed -n 's/.*slows this machine \([0-9.]*\) times/100 ms x \1 (this machine is slowed down by other work)/p' "$tmp/kills")" \
    sh -c "cat '$tmp/kills'; exit $killed"
grep -h '^restart' "$tmp/kills" | sed 's/^/        /'
check "its socket is still active" is active box systemctl is-active pipit-gateway@default.socket
check "and all sockets are there" sockets_there
check "the daemon did not notice" is "active" box systemctl is-active pipitd@default.service

# ---- watchdog: a front that stands still ----

note "watchdog"
box mkdir -p /run/systemd/system/pipitd@default.service.d
box sh -c 'printf "[Service]\nWatchdogSec=2\n" >/run/systemd/system/pipitd@default.service.d/quick.conf'
box systemctl daemon-reload
box systemctl restart pipitd@default.service
check "ready again" as alice pipit wait --timeout 60
sleep 3
check "a healthy daemon is left alone" is 0 property pipitd@default.service NRestarts
stopped=$(pid_of pipitd)
kill -STOP "$stopped"
check "a daemon that stands still is ended by the watchdog" until_true 30 not kill -0 "$stopped"
check "asked, its successor answers the same" is "$story" as alice "${ask[@]}" "$prompt"
# The same under a request that the engine has (it stands still, so that there is time).
kill -STOP "$(pid_of pipit-engine)"
as alice "${ask[@]}" "$prompt" >"$tmp/survived" 2>"$tmp/survived.err" &
asked=$!
check "a request runs" until_true 10 running
stopped=$(pid_of pipitd)
restarts=$(property pipitd@default.service NRestarts)
kill -STOP "$stopped"
check "the daemon that stands still under it is ended" until_true 30 not kill -0 "$stopped"
check "the client notices nothing" wait "$asked"
check "and gets the same answer" is "$story" cat "$tmp/survived"
check "systemd says that its watchdog did that" box sh -c 'journalctl --sync; journalctl -u pipitd@default.service -o cat | grep -c "Watchdog timeout" | grep -qx 2'
check "and started it once more" is "$((restarts + 1))" property pipitd@default.service NRestarts
box sh -c "sed -n 's|^ExecStart=|&|p' \$(systemctl show -p FragmentPath --value pipitd@default.service)" >"$tmp/exec"
box sh -c "printf '[Service]\nExecStart=\n%s --engine-timeout 2\n' '$(cat "$tmp/exec")' >/run/systemd/system/pipitd@default.service.d/hooks.conf"
box systemctl daemon-reload
box systemctl restart pipitd@default.service
as alice pipit wait --timeout 60
front=$(property pipitd@default.service MainPID)
check "an engine that hangs is replaced: the stream goes on with the same text" zmq hang
check "under the same daemon" is "$front" property pipitd@default.service MainPID
check "which systemd's watchdog left alone" is 0 property pipitd@default.service NRestarts
check "the journal says why it was killed" zmq journal PIPIT_EVENT=engine-killed "PIPIT_REASON=no step ended in time"
check "and how it ended" zmq journal PIPIT_EVENT=engine-died PRIORITY=3 _SYSTEMD_UNIT=pipitd@default.service
box rm -r /run/systemd/system/pipitd@default.service.d
box systemctl daemon-reload
box systemctl restart pipitd@default.service
as alice pipit wait --timeout 60

# ---- a conversation across a restart ----

note "sessions"
turn=(pipit ask --raw --temp 0 -n 24 --timeout 60 --session)
as alice "${turn[@]}" whole "$prompt" >"$tmp/whole1" 2>/dev/null
as alice "${turn[@]}" whole " Then he" >"$tmp/whole2" 2>/dev/null
check "a first turn" is "$(cat "$tmp/whole1")" as alice "${turn[@]}" broken "$prompt"
front=$(property pipitd@default.service MainPID)
box systemctl restart pipitd@default.service
check "the daemon is another one" not is "$front" property pipitd@default.service MainPID
check "the second turn, after it, is that of a conversation without a restart" is "$(cat "$tmp/whole2")" as alice "${turn[@]}" broken " Then he"
check "and no empty one" test -s "$tmp/whole2"
nicer() { cut -d' ' -f19 "/proc/$(pid_of pipit-engine)"/task/*/stat | grep -cx 5; }
check "the threads that read and saved it, no others, go behind the rest" is 2 nicer
check "the same turn of a new conversation is another" not is "$(cat "$tmp/whole2")" as alice "${turn[@]}" new " Then he"
# As root, in the unit's mounts: what stops it is a file system that is read-only.
writable() {
    local d root
    root=/proc/$(pid_of pipitd)/root
    for d; do touch "$root$d/.written" 2>/dev/null && rm "$root$d/.written" && echo "$d"; done | paste -sd ' ' -
}
check "the session lies in the state folder" box sh -c 'test -s /var/lib/pipit/default/sessions/$(id -u alice)/broken.session'
check "of / /etc /usr /var /var/lib /var/lib/pipit and the instance's folder only that is writable" \
    is /var/lib/pipit/default writable / /etc /usr /var /var/lib /var/lib/pipit /var/lib/pipit/default
check "the models' folder is root's, the instance's is closed to others" is "755 root 700 pipit" box sh -c "echo \$(stat -c '%a %U' /var/lib/pipit /var/lib/pipit/default)"
check "and of /run only its own folder there" is /run/pipit/default writable /run /run/lock /run/pipit /run/systemd /run/systemd/journal /run/pipit/default

# ---- reload ----

note "reload"
front=$(property pipitd@default.service MainPID)
box sh -c 'printf "max-queue = 7\n" >>/etc/pipit/default.conf'
check "systemctl reload" box systemctl reload pipitd@default.service
check "the journal says so" box sh -c 'journalctl -u pipitd@default.service | grep -q "configuration read again"'
box sh -c 'printf "max-queue = no\n" >>/etc/pipit/default.conf'
check "a mistake fails the reload" not box systemctl reload pipitd@default.service
check "the journal names file, line and key" box sh -c 'journalctl -u pipitd@default.service | grep -q "default.conf:[0-9]*: max-queue"'
box sed -i '$d' /etc/pipit/default.conf
check "the same daemon still answers" is "$story" as alice "${ask[@]}" "$prompt"
check "its process is the same" is "$front" property pipitd@default.service MainPID

# ---- the model's comings and goings ----

note "idle unload and drain"
state_is() { as alice pipit status --json | "$python" -c 'import json,sys; sys.exit(json.load(sys.stdin)["state"] != sys.argv[1])' "$1"; }
epoch() { as alice pipit status --json | "$python" -c 'import json,sys; print(json.load(sys.stdin)["model_epoch"])'; }
held() { # kB of the daemon and its children
    local kb=0 p
    for p in $(pid_of pipitd) $(pid_of pipit-engine); do
        kb=$((kb + $(awk '/^Pss:/ {print $2}' "/proc/$p/smaps_rollup")))
    done
    echo "$kb"
}
as alice "${ask[@]}" "$prompt" >"$tmp/said" 2>&1
loaded=$(held)
box sh -c 'printf "idle-unload = 1\n" >>/etc/pipit/default.conf; systemctl reload pipitd@default.service'
check "idle for a second, the model is unloaded" until_true 10 state_is unloaded
check "no engine runs" until_true 5 not pid_of pipit-engine
echo "        resident: $loaded kB with the model, $(held) kB without"
check "a question loads it again" is "$story" as alice "${ask[@]}" "$prompt"
box sh -c 'sed -i "/^idle-unload/d" /etc/pipit/default.conf; systemctl reload pipitd@default.service'
check "a member may not drain" refused 4 "for root" as alice pipit drain
before=$(epoch)
front=$(property pipitd@default.service MainPID)
check "root drains for a reload" box pipit drain --reload
check "it is the next epoch" is "$((before + 1))" epoch
check "of the same daemon" is "$front" property pipitd@default.service MainPID
check "root drains" box pipit drain
check "the daemon has ended" until_true 10 is inactive box systemctl is-active pipitd@default.service
check "its socket has not" is active box systemctl is-active pipitd@default.socket
check "nothing is kept of it" is 0 property pipitd@default.service NFileDescriptorStore
check "a question starts it again" is "$story" as alice "${ask[@]}" "$prompt"

# ---- what is written down ----

note "journal"
box journalctl --sync
check "the journal has lines of the daemon" box sh -c 'journalctl -u pipitd@default.service -o cat | grep -q "is ready"'
check "no prompt and no answer is in it" box sh -c '! journalctl -o export | grep -a -i -e xylophone -e "once upon"'
box sh -c 'printf "verbose = yes\n" >>/etc/pipit/default.conf; systemctl reload pipitd@default.service'
as alice "${ask[@]}" "$prompt" >"$tmp/said" 2>&1
box sh -c 'sed -i "/^verbose/d" /etc/pipit/default.conf; systemctl reload pipitd@default.service'
as alice "${ask[@]}" "$prompt" >"$tmp/said" 2>&1
check "nor when more is logged" box sh -c '! journalctl -o export | grep -a -i -e xylophone -e "once upon"'
box journalctl --sync
check "a request's line has its fields" zmq journal PIPIT_EVENT=request "PIPIT_PRINCIPAL=$(box id -u alice)" PIPIT_REASON=length PIPIT_NEW_TOKENS=40 \
    PIPIT_REQUEST_ID PIPIT_PROMPT_TOKENS PIPIT_QUEUE_MS PIPIT_DECODE_MS PIPIT_MS PRIORITY=6 SYSLOG_IDENTIFIER=pipitd _SYSTEMD_UNIT=pipitd@default.service
check "a loaded model's, too" zmq journal PIPIT_EVENT=model-ready PIPIT_MODEL PIPIT_EPOCH PIPIT_MS
check "and the engine's own" zmq journal PIPIT_EVENT=model-failed PRIORITY=3 SYSLOG_IDENTIFIER=pipit-engine _SYSTEMD_UNIT=pipitd@default.service
box sh -c 'printf "log-requests = no\n" >>/etc/pipit/default.conf; systemctl reload pipitd@default.service'
ends() { box sh -c 'journalctl --sync; journalctl -o cat PIPIT_EVENT=request | wc -l'; }
before=$(ends)
as alice "${ask[@]}" "$prompt" >"$tmp/said" 2>&1
check "ends of requests can be left out" is "$before" ends
box sh -c 'sed -i "/^log-requests/d" /etc/pipit/default.conf; systemctl reload pipitd@default.service'
check "a reload's, too" zmq journal PIPIT_EVENT=reload PRIORITY=6
check "nothing in it is an error of the units" box sh -c '! journalctl -b -p warning -o cat -t systemd | grep -i pipit | grep -v -i -e watchdog -e "status=9/KILL" -e "status=6/ABRT" -e "result .signal" -e "result .exit-code" -e "Control process exited" -e "Reload failed" -e "Main process exited" -e Killing'

# ---- what the units allow ----

note "sandbox"
units="pipitd@default.service pipitd@default.socket pipitd-privileged@default.socket pipit-gateway@default.service pipit-gateway@default.socket"
check "systemd-analyze verify has nothing to say" is "" box sh -c "systemd-analyze verify --man=no $units 2>&1"
check "exposure of pipitd at most 0.7" box systemd-analyze security --no-pager --threshold=7 pipitd@default.service
check "the service weighs three times another one beside it" is "/system.slice/pipitd@default.service 300" \
    sh -c "echo \$(nsenter -t $leader -a -- systemctl show -p ControlGroup --value pipitd@default.service) \$(nsenter -t $leader -a -- systemctl show -p CPUWeight --value pipitd@default.service)"
check "exposure of the gateway at most 0.3" box systemd-analyze security --no-pager --threshold=3 pipit-gateway@default.service
box install -m 0755 /mnt/probe /usr/libexec/pipit/probe
box sh -c 'echo secret >/home/alice/note && chmod 755 /home/alice && chmod 644 /home/alice/note'
box sh -c '/usr/libexec/pipit/probe listen >/run/probe.port 2>&1 &'
until_true 5 box test -s /run/probe.port
port=$(box cat /run/probe.port)
foreign=1
box cp /etc/pipit/default.conf /etc/pipit/probe.conf
check "without a unit, as root, every attempt succeeds" not box sh -c "/usr/libexec/pipit/probe $port /home/alice/note $foreign | grep ^shut"
for unit in pipitd pipit-gateway; do
    folder=/run/systemd/system/$unit@probe.service.d
    box mkdir -p "$folder"
    box sh -c "printf '[Service]\nType=oneshot\nRestart=no\nWatchdogSec=0\nExecReload=\nExecStart=\nExecStart=/usr/libexec/pipit/probe $port /home/alice/note $foreign\nStandardOutput=truncate:/run/$unit.probe\n' >$folder/probe.conf"
    box systemctl daemon-reload
    check "under $unit@.service, every attempt fails" box systemctl start "$unit@probe.service"
    box cat "/run/$unit.probe" | sed 's/^/        /'
    check "all twelve were made" is 12 box grep -c '^shut' "/run/$unit.probe"
done

zmq ping >"$tmp/said" # or there may be no gateway
for name in pipitd pipit-engine pipit-gateway; do # a process that is not dumpable has root's files in /proc
    check "nobody but root reads the memory of $name" is 0 stat -c %u "/proc/$(pid_of $name)/mem"
done
check "no swap, core dump or memory beyond a limit" is "0 1 yes" \
    box sh -c 'echo $(systemctl show -p LimitCORE -p MemorySwapMax --value pipitd@default.service) $(systemctl show -p MemoryMax --value pipitd@default.service | grep -q "^[0-9]" && echo yes)'
folder=/etc/systemd/system/pipitd@default.service.d
box mkdir -p $folder
check "pipitd plan --unit limits it to the plan" box sh -c "pipitd plan --config /etc/pipit/default.conf --unit >$folder/memory.conf && systemctl daemon-reload && systemctl restart pipitd@default.service"
check "systemd knows that limit" is "$(box sed -n 's/^MemoryMax=//p' $folder/memory.conf)" property pipitd@default.service MemoryMax
check "it answers within it" is "$story" as alice "${ask[@]}" "$prompt"
box sh -c "rm -r $folder && systemctl daemon-reload && systemctl restart pipitd@default.service"

# ---- a crash loop ----

note "crash loop"
box cp /etc/pipit/default.conf /etc/pipit/loop.conf
folder=/run/systemd/system/pipitd@loop.service.d
box mkdir -p $folder
box sh -c "printf '[Service]\nExecStart=\nExecStart=/usr/bin/pipit-nothing\n' >$folder/loop.conf; systemctl daemon-reload"
box systemctl start --no-block pipitd@loop.service
check "a daemon that never becomes ready is given up" until_true 90 is failed box systemctl is-active pipitd@loop.service
check "after thirty starts" box sh -c 'journalctl --sync; journalctl -u pipitd@loop.service -o cat | grep -q "Start request repeated too quickly"'
check "loudly" until_true 10 box sh -c 'journalctl --sync; journalctl -p crit -t pipit -o cat | grep -q "pipitd@loop is not started again"'
box sh -c "rm -r $folder; systemctl stop pipitd@loop.socket; systemctl daemon-reload; systemctl reset-failed pipitd@loop.service"

# ---- another version ----

note "upgrade"
check "a ZeroMQ client is answered" zmq ping
front=$(property pipitd@default.service MainPID)
kill -STOP "$(pid_of pipit-engine)"
as alice "${ask[@]}" "$prompt" >"$tmp/under" 2>"$tmp/under.err" &
under=$!
check "a request runs" until_true 10 running
check "the next version is installed under it" box env DEBIAN_FRONTEND=noninteractive dpkg -i /mnt/pipit.next
as alice "${ask[@]}" "$prompt" >"$tmp/waits" 2>"$tmp/waits.err" &
waits=$!
check "the daemon of the old one waits for that answer" is "$front" property pipitd@default.service MainPID
kill -CONT "$(pid_of pipit-engine)"
check "the client that was being answered notices nothing" wait "$under"
check "nor does the one that asked meanwhile" wait "$waits"
check "and gets the same answer" is "$story" cat "$tmp/under"
check "both do" is "$story" cat "$tmp/waits"
check "the daemon is another one" not is "$front" property pipitd@default.service MainPID
check "of the new version" box sh -c 'pipitd --version | grep -q " 9"'
check "the journal says that it was handed over" zmq journal PIPIT_EVENT=hand-over _SYSTEMD_UNIT=pipitd@default.service
check "a ZeroMQ client is answered by it" zmq ping
check "the sockets were never closed" sockets_there

# ---- a second instance, and the end ----

note "instances and removal"
box systemctl stop pipitd@probe.socket
box cp /etc/pipit/default.conf /etc/pipit/second.conf
check "another instance needs only its configuration" box systemctl start pipitd@second.socket
check "and answers" is "$story" as alice "${ask[@]}" --instance second "$prompt"
check "an instance without a configuration is refused" not box systemctl start pipitd@third.socket
check "stopping the socket stops all of it" box systemctl stop pipitd@second.socket
check "the daemon of that instance has ended" until_true 20 is inactive box systemctl is-active pipitd@second.service
check "systemctl stop ends the daemon in time" box systemctl stop pipitd@default.service
check "with success" is success property pipitd@default.service Result
check "a question starts it again" is "$story" as alice "${ask[@]}" "$prompt"
check "the package is removed" box env DEBIAN_FRONTEND=noninteractive sh -c 'apt-get purge -y pipit >/run/purge 2>&1'
check "which says what stays" box grep -q "/var/lib/pipit stays, with 1 files of models and [1-9]" /run/purge
check "nothing of it runs" until_true 20 not box pidof pipitd pipit-engine pipit-gateway
check "the model is still there" box test -s /var/lib/pipit/model.gguf

echo
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
