#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The n-th allocation or system call of pipitd or of pipit-gateway, or with --engine of pipit-engine, fails, for n = 1, 2, 3 ... (fault_preload.c): at their start,
and while a client streams and others say hello, ask, tokenize through a lease, cancel, resume, save, list and remove a session,
look at the state, ask over ZeroMQ and unload the model, which the next request loads again. After each failure:

    every call got what it asked for, or an error that says why; a lost connection is made anew and the request resumed
    the front lives (at the start: ends with a message and a code); the gateway may end, and is started again
    a fresh client gets the right text, over both doors
    descriptors are as many as before, and the heap, once all has ended, is what it is without a failure
    no sanitizer complained
    the engine may end with a code and its cause, and is started again; by a signal it may not, and it has not more heap in use

Without arguments a sample, of --seconds (18) and --seed; --all walks every n until none is hit (some five minutes on two cores).
PIPIT_BUILD is the build folder. Without pyzmq the ZeroMQ part is left out, and said."""
import argparse
import contextlib
import datetime
import itertools
import json
import mmap
import os
import platform
import random
import re
import shutil
import struct
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "../e2e"), os.path.join(HERE, "../soak")]
from common import SANITIZERS, commit  # noqa: E402
from daemon import BUILD, SLOW, Daemon, wait_until  # noqa: E402
from lane import (BULK, DONE, E2C, ERROR, F_DETACH, F_SESSION, LEASE, LOAD, METRICS_GET, PONG, S_IGNORE_END, SESSION, STATES, STATUS, T_PROMPT,  # noqa: E402
                  T_SESSION, TOKEN, TOKENIZE, UNLOAD, Refused, item, prompt, sampling, text_of)

try:
    import zclient
except SystemExit:  # it says what is missing
    zclient = None
if not os.path.exists(os.path.join(BUILD, "daemon/gateway/pipit-gateway")):
    zclient = None

PRELOAD = os.path.abspath(os.path.join(BUILD, "tests/fault/fault_preload.so"))
LIMIT = 8 * SLOW  # for any answer
STORY, LONG, MANY = "Once upon a time", 60, 400
MEMORY, SYSTEM = 1, 2
ENGINE = "pipit-engine"
# What the sample begins with, each of the calls once: of these the one that fails among some hundred is seldom met.
EACH = {"pipitd": ("sendmsg", "recvmsg", "epoll_ctl add", "calloc", "malloc", "accept4", "memfd_create", "open", "openat", "pread64", "fcntl",
                   "mkdirat", "fstatat64", "readdir64", "socketpair", "fork"),
        "pipit-gateway": ("sendmsg", "recvmsg", "malloc", "send", "poll"),
        ENGINE: ("malloc", "calloc", "realloc", "sendmsg", "recvmsg", "mmap64", "pthread_create", "openat", "pwrite64", "pread64", "fsync",
                 "renameat", "fallocate64", "fcntl", "poll", "read", "write")}
OWN = ("pipitd", "pipit-gateway", ENGINE)  # what of their own code makes a call that fails
DOORS = ("pipitd", "pipit-gateway")[:1 + bool(zclient)]
HEAP = 64 << 10  # what the engine's heap may vary by, between two requests' ends


class Fault(Exception):
    """What must not be after a failure."""


def need(ok, what):
    if not ok:
        raise Fault(what)


class Control:
    """One program's struct control."""

    def __init__(self, folder, name):
        self.path = os.path.join(folder, name)
        with open(self.path, "wb+") as f:
            f.truncate(4096)
            self.map = mmap.mmap(f.fileno(), 4096)
        self.put(1, MEMORY | SYSTEM)

    def put(self, i, value):
        struct.pack_into("<q", self.map, 8 * i, value)

    def get(self, i):
        return struct.unpack_from("<q", self.map, 8 * i)[0]

    calls, live, pid = (property(lambda self, i=i: self.get(i)) for i in (2, 4, 6))

    def arm(self, n, only=""):
        self.map[384:448] = only.encode().ljust(64, b"\0")
        self.put(3, 0)
        self.put(2, 0)
        self.put(0, n)

    def fired(self):
        return self.get(3) > 0

    def disarm(self):
        self.put(0, 0)

    def text(self, at, size):
        return self.map[at:at + size].split(b"\0")[0].decode()

    def own(self):
        """The call that failed was made by pipit's code, not by a library."""
        return os.path.basename(self.text(128, 256)) in OWN

    def site(self):
        if not self.fired():
            return "nothing"
        return f"{self.text(64, 64)} of {os.path.basename(self.text(128, 256))}+{self.get(7):#x}"


class Patient(zclient.Client if zclient else object):
    """A ZeroMQ client that waits no longer than there is hope."""

    def __init__(self, path, hopeless):
        super().__init__(path)
        self.hopeless = hopeless

    def receive(self, timeout=LIMIT):
        end = time.monotonic() + timeout
        while True:
            try:
                return super().receive(SLOW / 2)
            except zclient.Timeout:
                if time.monotonic() > end or self.hopeless():
                    raise


class Served:
    """A pipitd with the library loaded."""

    def __init__(self, folder, arm=None, ready=True):
        self.controls = {name: Control(folder, name) for name in OWN}
        self.folder, self.right_turns = folder, [None, None]
        for name, n in (arm or {}).items():
            self.controls[name].arm(n)
        env = {"LD_PRELOAD": PRELOAD, "FAULT_DIR": folder}
        if "address" in SANITIZERS:
            env["ASAN_OPTIONS"] = ":".join(o for o in (os.environ.get("ASAN_OPTIONS"), "verify_asan_link_order=0") if o)
        self.daemon = Daemon("--sequences", "4", "--state-dir", os.path.join(folder, "state"), "--stall-timeout", "5",
                             gateway="yes" if zclient else "no", backend="cpu", env=env, wait=False)
        self.zmq = os.path.join(self.daemon.folder, "zmq.sock")
        self.lanes = []
        self.n_lost = self.n_refused = self.n_engines = self.n_crashes = 0
        if ready:
            self.wait_ready()

    def wait_ready(self):
        self.daemon.ready().close()
        if zclient:
            need(wait_until(lambda: os.path.exists(self.zmq)), "no zmq.sock")

    def pid(self, name):
        return self.daemon.process.pid if name == "pipitd" else self.daemon.child(name)

    def fds(self, name):
        with contextlib.suppress(FileNotFoundError):
            return len(os.listdir(f"/proc/{self.pid(name)}/fd"))
        return 0

    def lane(self):
        """Refused with a reason it is tried again; anything else is a fault."""
        for _ in range(4):
            try:
                lane = self.daemon.lane()
                lane.timeout = LIMIT
                self.lanes.append(lane)
                return lane
            except Refused as e:
                need(e.args[0].text, "a hello is refused without a word")
                self.n_refused += 1
            except (EOFError, ConnectionError, TimeoutError) as e:
                raise Fault(f"a hello is not answered: {e!r}") from None
        raise Fault("hello is refused again and again")

    def close(self):
        for lane in self.lanes:
            lane.close()
        self.lanes = []

    def events(self, lane, items, rid=None, n_tries=4, **kw):
        """(its lane, id, events up to the last): asked, or resumed where the connection is lost."""
        known = rid is not None
        rid = rid or os.urandom(16)
        for _ in range(n_tries):
            try:
                if known:
                    lane.resume(rid)
                else:
                    lane.request(items, rid=rid, **kw)
                got = list(lane.events(rid))
                if known and got[-1].type == ERROR and got[-1].code == "NOT_FOUND" and items:
                    known = False  # it was lost before it was taken
                    continue
                return lane, rid, got
            except TimeoutError:
                raise Fault(f"no answer within {LIMIT} s") from None
            except (EOFError, ConnectionError):
                self.n_lost += 1
                lane, known = self.lane(), True
        raise Fault("the connection is lost again and again")

    def told(self, events):
        """False for an error, which must say why."""
        last = events[-1]
        if last.type == ERROR:
            need(last.text, "an error without a text")
            self.n_refused += 1
        return last.type != ERROR

    def text(self, n, lane=None):
        """Right, or an error with a text."""
        lane, rid, got = self.events(lane or self.lane(), prompt(STORY, n, flags=S_IGNORE_END), flags=F_DETACH)
        return rid, text_of(got) if self.told(got) else None

    def small(self, what):
        """What is asked and answered at once, on a lane of its own; a lost connection is an answer."""
        try:
            return what(self.lane())
        except TimeoutError:
            raise Fault(f"no answer within {LIMIT} s") from None
        except (EOFError, ConnectionError):
            self.n_lost += 1
            return None

    def lease(self, lane, size):
        r = lane.lease(E2C, size)
        return r if r.type == LEASE else need(r.text, "no lease and no text")

    # ---- what the clients do ----

    def tokenize(self, lane):
        lease = self.lease(lane, 4096)
        if lease:
            lane, _, got = self.events(lane, item(T_PROMPT, STORY), kind=TOKENIZE, out=lease)
            if self.told(got):
                need([e for e in got if e.type == BULK][0].n_rows == self.n_prompt, "the wrong number of tokens")

    def cancel(self, lane):
        rid = lane.request(prompt(STORY, MANY, flags=S_IGNORE_END))
        e = lane.recv()
        while e.type not in (TOKEN, DONE, ERROR):
            e = lane.recv()
        if e.type == TOKEN:
            lane.cancel(rid)
            e = list(lane.events(rid))[-1]
        need(e.type == DONE and e.reason in ("cancelled", "length") or e.text, f"cancelled: {e}")

    def session(self, lane):
        lane, _, got = self.events(lane, item(T_PROMPT, STORY) + item(T_SESSION, "s") + sampling(max_tokens=4), flags=F_SESSION)
        saved = self.told(got) and got[-1].session_err == 0
        lease = self.lease(lane, 8192)
        for op, name in ((1, b""), (2, b"s")) if lease else ():
            lane.send(SESSION, struct.pack("<IIII72s", op, lease.buf, lease.generation, 0, name))
            r = lane.recv()
            if r.type == ERROR:
                need(r.text, "a session's error without a text")
            else:
                need(r.type == BULK, f"a list that is {r}")
                need(op == 2 or not saved or b"s\t" in lane.e2c[lease.offset:lease.offset + r.n_bytes], "a saved session is not listed")
                lane.recv()

    def turns(self, lane):
        """A conversation is saved and loaded: what it goes on with is right if both were told to be."""
        saved = True
        for i, (text, n) in enumerate(((STORY, 12), (" Then", 9))):
            lane, _, got = self.events(lane, item(T_PROMPT, text) + item(T_SESSION, "t") + sampling(max_tokens=n, flags=S_IGNORE_END), flags=F_SESSION)
            if not self.told(got) or not saved:
                return
            need(got[-1].session in (1, 2), f"a session is {got[-1].session}")
            need(got[-1].session == 1 or got[-1].session_cause, "a session is not saved, and no cause said")
            saved = got[-1].session == 1
            self.right_turns[i] = self.right_turns[i] or text_of(got)
            need(text_of(got) == self.right_turns[i], f"turn {i}: wrong text {text_of(got)}")

    def forget(self):
        shutil.rmtree(os.path.join(self.folder, "state"), ignore_errors=True)

    def state(self, lane):
        need(lane.status().type == STATUS, "no status")
        lease = self.lease(lane, 16384)
        if lease:
            lane.send(METRICS_GET, struct.pack("<IIIIQQ", E2C, lease.buf, lease.generation, 0, 0, 0))
            r = lane.recv()
            need(r.type == BULK or r.text, "metrics")

    def unload(self, lane):
        """The next request starts another engine."""
        r = lane.control(UNLOAD)
        need(r.type == PONG or r.text, f"unloaded: {r}")

    def over_zmq(self, n):
        """The text; None for an error that says why, or where the gateway has died and came back."""
        before = self.pid("pipit-gateway")
        if not wait_until(lambda: os.path.exists(self.zmq), LIMIT):
            raise Fault("the gateway does not come back")
        control = self.controls["pipit-gateway"]

        def hopeless():
            """It has died, or libzmq has dropped the connection, as it does when a call of its own fails."""
            return self.pid("pipit-gateway") != before or self.pid_died(before) or control.fired() and not control.own()
        with Patient(self.zmq, hopeless) as c:
            try:
                r = zclient.generate(STORY, max_tokens=n, temperature=0)
                r.generate.sampling.ignore_end = True
                text = b""
                for e in c.events(r, LIMIT):
                    if e.HasField("error"):
                        need(e.error.text, "an error without a text")
                        return None
                    text += e.delta.text if e.HasField("delta") else b""
                s = zclient.pb.Request()
                s.status.SetInParent()
                e = c.last(s, LIMIT)
                need(e.HasField("status") or e.error.text, "a status that is none")
                return text
            except zclient.Timeout:
                need(hopeless(), f"no answer over ZeroMQ within {LIMIT} s")
                self.n_lost += 1
                return None

    def pid_died(self, pid):
        return not pid or not os.path.exists(f"/proc/{pid}")

    def scenario(self):
        self.forget()
        streaming = self.lane()
        rid = streaming.request(prompt(STORY, LONG, flags=S_IGNORE_END), flags=F_DETACH)
        yield  # now a failure may be armed
        asked, text = self.text(12)
        need(text in (None, self.right[:len(text or b"")]), f"wrong text {text}")
        self.small(self.tokenize)
        self.small(self.cancel)
        if text is not None:
            _, _, got = self.events(self.lane(), b"", rid=asked)
            need(not self.told(got) or text_of(got) == text, "resumed, the text is another")
        self.small(self.session)
        self.small(self.turns)
        self.small(self.state)
        if zclient:
            text = self.over_zmq(12)
            need(text in (None, self.right[:len(text or b"")]), f"wrong text {text} over ZeroMQ")
        try:
            got = list(streaming.events(rid))
        except TimeoutError:
            raise Fault("the stream stands still") from None
        except (EOFError, ConnectionError):
            self.n_lost += 1
            _, _, got = self.events(self.lane(), b"", rid=rid)
        need(not self.told(got) or text_of(got) == self.right, "the stream's text is another")
        self.n_loaded = self.controls[ENGINE].calls
        self.small(self.unload)
        _, text = self.text(12)
        need(text in (None, self.right[:len(text or b"")]), f"wrong text {text} of a model that was loaded again")
        self.close()

    def learn(self):
        """What is right, once in peace; what is opened for good is opened."""
        lane, _, got = self.events(self.lane(), prompt(STORY, LONG, flags=S_IGNORE_END))
        need(got[-1].type == DONE, got[-1])
        self.right, self.n_prompt = text_of(got), got[-1].n_prompt
        for name in OWN:
            self.controls[name].arm(0)
        for _ in self.scenario():
            pass
        need(all(self.right_turns), "no conversation")
        self.n_calls = {name: self.controls[name].calls for name in OWN}
        self.close()
        self.n_fds = {}
        for name in OWN:  # once the lanes are gone
            wait_until(lambda n=name: self.settled(n), 2)
            self.n_fds[name] = self.fds(name)
        self.n_heap = self.controls[ENGINE].live

    def settled(self, name):
        """Their number does not change for a moment."""
        a = self.fds(name)
        time.sleep(0.1)
        return a == self.fds(name)

    def failing(self, name, n, only=""):
        """One scenario in which the n-th call (of that name) of that program fails; False when it made fewer."""
        control = self.controls[name]
        log_from = os.path.getsize(self.daemon.log_path)
        gateway = self.pid("pipit-gateway")
        try:
            for _ in self.scenario():
                control.arm(n, only)
            fired = control.fired()
            control.disarm()
            need(self.daemon.process.poll() is None, "the front has ended")
            self.fresh()
            if zclient and self.pid("pipit-gateway") != gateway:
                self.gateway_death(log_from, control)
            self.engine_death(log_from)
            for who in (*DOORS, ENGINE):
                need(wait_until(lambda w=who: 0 < self.fds(w) <= self.n_fds[w], 5),
                     f"{who} has {self.fds(who)} descriptors, {self.n_fds[who]} before")
            need(wait_until(lambda: self.controls[ENGINE].live <= self.n_heap + HEAP, 2),
                 f"the engine's heap: {self.controls[ENGINE].live} bytes, {self.n_heap} before")
        finally:
            control.disarm()
            self.close()
        return fired

    def fresh(self):
        lane = self.lane()
        if STATES[lane.status().state] == "unloaded":  # what would have loaded it again was refused
            lane.control(LOAD)
        self.daemon.ready().close()  # an engine that ended is back
        _, text = self.text(LONG)
        need(text == self.right, "afterwards: the text is another")
        if zclient:
            text = next(filter(None, (self.over_zmq(LONG) for _ in range(4))), None)
            need(text == self.right, f"afterwards: the text over ZeroMQ is another: {text}")
        self.close()

    def engine_death(self, log_from):
        """With a code, and having said why."""
        with open(self.daemon.log_path, errors="replace") as f:
            f.seek(log_from)
            log = f.read()
        if "the engine ended with signal" in log:
            # libcrypto cannot make its tables without memory, at the engine's start: session_start()
            started = " is ready on " not in log[:log.index("the engine ended with signal")].rpartition("the model is unloaded")[2]
            library = os.path.basename(self.controls[ENGINE].text(128, 256)).startswith("libcrypto")
            # The front ends an engine that it has just made and cannot watch.
            need(started and library or "cannot watch the engine" in log, "the engine was ended by a signal")
            self.n_crashes += library
        if "the engine ended with exit code" in log:
            self.n_engines += 1
            need(re.search(r"(?m)^pipit-engine: .+", log[:log.index("the engine ended with exit code")]), "the engine ends without a word")

    def gateway_death(self, log_from, control):
        """libzmq and its C++ may abort; our own code says why it ends."""
        with open(self.daemon.log_path, errors="replace") as f:
            f.seek(log_from)
            log = f.read()
        need(not control.own() or "ended with signal" not in log, "the gateway was ended by a signal")

    def stop(self):
        """Its exit code; the heap that is left of each program."""
        self.close()
        code = self.daemon.stop()
        return code, {name: self.controls[name].live for name in DOORS}


class Walk:
    def __init__(self, args, folder):
        self.args, self.folder = args, folder
        self.end = time.monotonic() + args.seconds
        self.random = random.Random(args.seed)
        self.failures, self.counts = [], {}
        self.served = None
        self.left = None

    def over(self):
        return not self.args.all and time.monotonic() > self.end

    def note(self, where, n, control, e):
        text = f"{where}, call {n}, {control.site()}: {e}"
        self.failures.append(text)
        print("FAILED " + text, flush=True)
        if self.args.verbose and self.served:
            print(self.served.daemon.text()[-2000:], flush=True)

    def started(self):
        if not self.served:
            self.served = Served(self.folder)
            self.served.learn()
        return self.served

    def stopped(self, where):
        """Ends the daemon; what is left in its heap is what is left without a failure."""
        served, self.served = self.served, None
        if not served:
            return
        try:
            code, left = served.stop()
            need(code == 0, f"exit code {code}")
            for name in DOORS if self.left else ():
                need(left[name] <= self.left[name] + 512, f"{left[name]} bytes of heap are left of {name}, {self.left[name]} without a failure")
            self.left = self.left or left
        except (Fault, AssertionError) as e:
            self.failures.append(f"{where}: {e}")
            print("FAILED " + self.failures[-1], flush=True)

    def count(self, where, what):
        c = self.counts.setdefault(where, {})
        c[what] = c.get(what, 0) + 1

    def numbers(self, most, skipped=()):
        """All of them but some; or some of them, without end."""
        if self.args.all:
            yield from (n for n in range(self.args.first, 1000000) if n not in skipped)
        else:
            while True:
                yield self.random.randint(1, most)

    def serving(self, name, end):
        """Failures while clients are served."""
        where, n_missed, rounds = f"{name} serving", 0, []  # rounds: of one daemon
        # In the engine's scenario the model is loaded again; its start has the same calls.
        loaded = self.started().n_loaded
        skipped = range(loaded + 100, loaded + Served.n_at_start[name] - 200) if name == ENGINE else ()
        each = [] if self.args.all else [(self.random.randint(1, 2), call) for call in EACH[name]]
        for n, only in itertools.chain(each, ((n, "") for n in self.numbers(self.started().n_calls[name], skipped))):
            if not only and not self.args.all and time.monotonic() > end or n_missed == 3:
                break
            served = self.started()
            control = served.controls[name]
            lost, refused, engines, crashes = served.n_lost, served.n_refused, served.n_engines, served.n_crashes
            try:
                if served.failing(name, n, only):
                    n_missed = 0
                    self.count(where, "failures")
                    self.count(where, "connection lost" if served.n_lost > lost else "error told" if served.n_refused > refused else
                               "crash of a library" if served.n_crashes > crashes else "engine ended" if served.n_engines > engines else "borne")
                else:
                    n_missed += not only
            except (Fault, OSError, AssertionError) as e:
                self.count(where, "failures")
                self.note(where, n, control, repr(e) if not isinstance(e, Fault) else e)
                self.stopped(f"{where}, calls {rounds} and {n}")
                rounds = []
                continue
            rounds.append(n)
            if self.args.all and n % 100 == 0:
                print(f"{where}: {n}", flush=True)
            if len(rounds) == 25:
                self.stopped(f"{where}, calls {rounds}")
                rounds = []
        self.stopped(f"{where}, calls {rounds}")

    def start(self, name, n):
        served = Served(self.folder, arm={name: n}, ready=False)
        served.right = self.right
        control = served.controls[name]
        where = f"{name} starting"
        try:
            end = time.monotonic() + LIMIT
            text = None
            while served.daemon.process.poll() is None:
                need(time.monotonic() < end, "it neither serves nor ends")
                try:
                    served.wait_ready()
                    _, text = served.text(LONG)
                    if text == self.right and zclient:
                        text = served.over_zmq(LONG)
                    if text == self.right:
                        break
                    need(text is None, f"wrong text {text}")
                except Refused as e:
                    need(e.args[0].text, "a hello is refused without a word")
                except (EOFError, ConnectionError, FileNotFoundError):
                    pass
            if text == self.right:
                self.count(where, "failures" if control.fired() else "unhit")
                self.count(where, "served")
                control.disarm()
                code = self.stop_started(served, control)
                need(code == 0, f"exit code {code}")
            else:
                code, _ = served.stop()
                self.count(where, "failures")
                self.count(where, "ended with a message")
                need(code in (2, 4, 6, 8), f"exit code {code}")
                need(name != "pipit-gateway", "the gateway's failure ended the front")
                need(served.daemon.text().strip(), "it ends without a word")
            if "the engine ended with signal" in served.daemon.text():
                need(os.path.basename(control.text(128, 256)).startswith("libcrypto"), "the engine was ended by a signal")
                self.count(where, "crash of a library, then")
        except (Fault, OSError, AssertionError) as e:
            self.served = served
            self.note(where, n, control, repr(e) if not isinstance(e, Fault) else e)
            self.served = None
            with contextlib.suppress(Exception):
                served.stop()
        return control.fired()

    def stop_started(self, served, control):
        """Its exit code. A library that crashes for want of what its own call did not get is not ours to mend; the gateway
        came back. (glibc's name service does, which libpgm asks as libzmq starts.)"""
        try:
            return served.stop()[0]
        except AssertionError:
            told = re.findall(r"ERROR: (\w+: \w+)", served.daemon.text())
            if control is not served.controls["pipit-gateway"] or control.own() or set(told) != {"AddressSanitizer: SEGV"}:
                raise
            self.count("pipit-gateway starting", "crash of a library")
            shutil.rmtree(served.daemon.folder, ignore_errors=True)
            return served.daemon.process.returncode

    def starting(self, name, end):
        n_missed = 0
        served = self.started()
        self.right = served.right
        self.stopped("before the starts")
        n_calls = served.n_at_start[name]
        for n in self.numbers(n_calls):
            if not self.args.all and time.monotonic() > end or n_missed == 3 or self.args.all and n > n_calls + 40:
                break
            n_missed = 0 if self.start(name, n) else n_missed + 1
            if self.args.all and n % 500 == 0:
                print(f"{name} starting: {n}", flush=True)

    def run(self):
        probe = Served(self.folder)
        at_start = {name: probe.controls[name].calls for name in OWN}
        probe.learn()
        code, self.left = probe.stop()
        need(code == 0, f"exit code {code}: {probe.daemon.text()}")
        print(f"calls at the start {at_start}, of a scenario {probe.n_calls}, heap that is left {self.left}", flush=True)
        Served.n_at_start = at_start
        parts = [(how, name) for name in ((ENGINE,) if self.args.engine else DOORS) for how in (self.serving, self.starting)]
        for i, (how, name) in enumerate(parts):
            if self.args.only and self.args.only != f"{how.__name__}-{name}":
                continue
            left = self.end - time.monotonic()
            how(name, time.monotonic() + left / (len(parts) - i))
        return {"calls": {"at the start": at_start, "of a scenario": probe.n_calls}, "injected": self.counts}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--all", action="store_true")
    p.add_argument("--seconds", type=float, default=18)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--first", type=int, default=1, help="of --all")
    p.add_argument("--only", help="serving-pipitd, starting-pipitd, serving-pipit-gateway or starting-pipit-gateway; with --engine serving-pipit-engine or starting-pipit-engine")
    p.add_argument("--engine", action="store_true", help="failures of pipit-engine")
    p.add_argument("--json", help="where the result goes")
    p.add_argument("-v", "--verbose", action="store_true", help="with the log of what failed")
    args = p.parse_args()
    folder = tempfile.mkdtemp(prefix="fault-")
    began = time.monotonic()
    try:
        walk = Walk(args, folder)
        result = walk.run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    with open("/proc/cpuinfo") as f:
        cpu = next((line.split(":")[1].strip() for line in f if line.startswith("model name")), platform.machine())
    result = {"command": "tests/fault/fault_daemon.py" + "".join(" " + a for a in sys.argv[1:]), "date": datetime.date.today().isoformat(),
              "commit": commit(), "machine": f"{cpu}, {os.cpu_count()} CPUs", "sanitizers": SANITIZERS, "zmq": zclient is not None,
              "seconds": round(time.monotonic() - began, 1), **result, "failures": walk.failures, "passed": not walk.failures}
    text = json.dumps(result, indent=1)
    print(text)
    if args.json:
        with open(args.json, "w") as f:
            f.write(text + "\n")
    return 1 if walk.failures else 0


if __name__ == "__main__":
    sys.exit(main())
