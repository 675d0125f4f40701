#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""pipitd and pipit-gateway as systemd runs them, with this script in systemd's place: sockets made
beforehand and handed over by name, readiness, reload, signs of life, and its store of file descriptors, by
which the requests of a daemon that was killed reach the next. What only a booted systemd can
show (units, sandbox, restarts) is tests/e2e/booted.sh."""
import contextlib
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest

from daemon import HOOKED
from lane import (ACCEPTED, ALT, CONTROL, DONE, DRAIN, ERROR, F_REPLAYED, F_SESSION, RELOAD, S_IGNORE_END, STATUS, T_PROMPT, T_SESSION,
                  TOKEN, Lane, Refused, item, order, prompt, sampling, text_of)

try:
    from zclient import Client
except SystemExit:
    Client = None

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("PIPIT_BUILD", os.path.join(SOURCE, "build"))
MODEL = os.path.join(SOURCE, "tests/data/stories260K.gguf")
PIPITD = os.path.join(BUILD, "daemon/front/pipitd")
GATEWAY = os.path.join(BUILD, "daemon/gateway/pipit-gateway")
PIPIT = os.path.join(BUILD, "client/pipit")
WAIT = 60.0


class Systemd:
    """Sockets in a folder of its own, and services that get them."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="pipit-")
        self.listening = {}
        self.children = []
        self.logs = []
        for name, kind in (("lane", socket.SOCK_SEQPACKET), ("gateway", socket.SOCK_SEQPACKET),
                           ("zmq", socket.SOCK_STREAM)):
            s = socket.socket(socket.AF_UNIX, kind)
            s.bind(os.path.join(self.folder, name + ".sock"))
            s.listen(128)
            self.listening[name] = s
        self.notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notify.bind(os.path.join(self.folder, "notify"))
        self.store = []  # (name, descriptor)

    def hear(self, seconds):
        """One notification, obeyed where it is about the store (sd_notify(3)); "" when none comes in time."""
        self.notify.settimeout(seconds)
        try:
            text, fds, _, _ = socket.recv_fds(self.notify, 4096, 4)
        except (socket.timeout, BlockingIOError):
            return ""
        words = dict(line.split("=", 1) for line in text.decode().splitlines())
        if words.get("FDSTORE") == "1":
            assert words.get("FDPOLL") == "0", "it would be polled"
            self.store += [(words["FDNAME"], fd) for fd in fds]
            fds = []
        if words.get("FDSTOREREMOVE") == "1":
            for name, fd in self.store:
                fds += [fd] if name == words["FDNAME"] else []
            self.store = [(n, fd) for n, fd in self.store if fd not in fds]
        for fd in fds:
            os.close(fd)
        return text.decode()

    def start(self, argv, names, **env):
        """The service: its sockets and then what is stored as descriptors 3 and up, as sd_listen_fds(3) has it."""
        while self.hear(0):
            pass
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            given = [self.listening[n].fileno() for n in names] + [fd for _, fd in self.store]
            names = [*names, *(n for n, _ in self.store)]
            high = [os.dup2(fd, 100 + i) for i, fd in enumerate(given)]
            for i, fd in enumerate(high):
                os.dup2(fd, 3 + i, inheritable=True)
            os.dup2(write, 2)
            os.execve(argv[0], argv, {
                "PATH": os.environ["PATH"], "NOTIFY_SOCKET": os.path.join(self.folder, "notify"),
                "LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(len(names)), "LISTEN_FDNAMES": ":".join(names),
                **{k: os.environ[k] for k in os.environ if "SAN_OPTIONS" in k}, **env})
        os.close(write)
        self.children.append(pid)
        self.logs.append(os.fdopen(read, "rb"))
        return pid, self.logs[-1]

    def wait_for(self, text, seconds=WAIT):
        """Until a notification holds the text; what came since the last call, that one included."""
        end = time.monotonic() + seconds
        heard = []
        while True:
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"{text} not among {heard}")
            heard.append(self.hear(left))
            if text in heard[-1]:
                return heard

    def stop(self, pid, sig=signal.SIGTERM):
        os.kill(pid, sig)
        self.children.remove(pid)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def close(self):
        for pid in list(self.children):
            self.stop(pid, signal.SIGKILL)
        for s in [*self.listening.values(), self.notify, *self.logs]:
            s.close()
        for _, fd in self.store:
            os.close(fd)
        shutil.rmtree(self.folder)


class Base(unittest.TestCase):
    def setUp(self):
        self.systemd = Systemd()
        self.addCleanup(self.systemd.close)
        self.folder = self.systemd.folder
        self.conf = os.path.join(self.folder, "conf")
        self.configure()

    def settings(self, **more):
        lines = {"model": MODEL, "backend": "ref", "threads": "1", "ctx": "256", "sequences": "1", **more}
        return "".join(f"{k.replace('_', '-')} = {v}\n" for k, v in lines.items())

    def configure(self, **more):
        with open(self.conf, "w", encoding="utf-8") as f:
            f.write(self.settings(**more))

    arguments = ()
    program = PIPITD

    def daemon(self, *names, **env):
        return self.systemd.start([self.program, "--config", self.conf, "--runtime-dir", self.folder, *self.arguments], names, **env)

    def engine_of(self, pid):
        with open(f"/proc/{pid}/task/{pid}/children") as f:
            return int(f.read().split()[0])

    def gateway(self, **env):
        return self.systemd.start([GATEWAY, "--runtime-dir", self.folder, "--listen-fd", "3"], ["zmq"], **env)


class Sockets(Base):
    def test_order_of_names_does_not_matter(self):
        for names in (["lane", "gateway"], ["gateway", "lane"]):
            pid, _ = self.daemon(*names)
            self.systemd.wait_for("READY=1")
            lane = Lane(self.folder)
            lane.wait_ready(WAIT)
            self.assertTrue(text_of(lane.events(lane.request(prompt(b"Once", 4)))))
            lane.close()
            self.assertEqual(self.systemd.stop(pid), 0)

    def test_client_before_the_daemon_and_sockets_after_it(self):
        """Started on demand; killed; the next start serves the same sockets, with another epoch."""
        epochs = []
        for _ in range(2):
            early = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            early.connect(os.path.join(self.folder, "lane.sock"))
            early.close()
            pid, _ = self.daemon("lane", "gateway")
            self.systemd.wait_for("READY=1")
            lane = Lane(self.folder)
            epochs.append(lane.hello.front_epoch)
            lane.close()
            self.systemd.stop(pid, signal.SIGKILL)
            for name in ("lane.sock", "gateway.sock"):
                self.assertTrue(os.path.exists(os.path.join(self.folder, name)))
        self.assertNotEqual(*epochs)

    def test_a_wrong_kind_of_socket_is_refused(self):
        pid, log = self.daemon("lane", "zmq")
        self.systemd.children.remove(pid)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 2)
        self.assertIn(b"SOCK_SEQPACKET", log.read())


class Reload(Base):
    def setUp(self):
        super().setUp()
        self.pid, self.log = self.daemon("lane", "gateway")
        self.systemd.wait_for("READY=1")
        self.lane = Lane(self.folder)
        self.addCleanup(self.lane.close)
        self.lane.wait_ready(WAIT)

    def reload(self):
        os.kill(self.pid, signal.SIGHUP)
        self.reloaded()

    def reloaded(self):
        self.assertIn("MONOTONIC_USEC=", self.systemd.wait_for("RELOADING=1")[-1])
        self.systemd.wait_for("READY=1")

    def lines(self):
        """What was logged up to now, by way of a stop."""
        self.assertEqual(self.systemd.stop(self.pid), 0)
        return self.log.read().decode()

    def nobody_may_wait(self):
        """max-queue = 0 counts: beside one that runs."""
        first = self.lane.request(prompt(b"Once upon a time", 200))
        other = Lane(self.folder)
        answer = list(other.events(other.request(prompt(b"There", 4))))[-1]
        self.assertEqual(answer.code, "BUSY", answer)
        self.lane.cancel(first)
        list(self.lane.events(first))
        other.close()

    def test_live_settings_count_at_once(self):
        self.configure(max_queue=0, sequences=1, verbose="yes")
        self.reload()
        self.nobody_may_wait()
        self.assertIn("configuration read again", self.lines())

    def test_the_rest_is_named(self):
        self.configure(ctx=128, kv="full", max_queue=3)
        self.reload()
        self.assertEqual(self.lane.status().ctx, 256)
        self.assertIn("waiting for a restart: ctx, kv", self.lines())

    def test_a_mistake_changes_nothing(self):
        self.configure(max_queue=0)
        with open(self.conf, "a", encoding="utf-8") as f:
            f.write("stall-timeout = 0\n")
        self.reload()
        first = self.lane.request(prompt(b"Once upon a time", 100))
        other = Lane(self.folder)
        self.assertTrue(text_of(other.events(other.request(prompt(b"There", 4)))))
        list(self.lane.events(first))
        other.close()
        text = self.lines()
        self.assertIn("conf:7: stall-timeout", text)
        self.assertIn("0.1..3600", text)
        self.assertIn("old configuration stays", text)

    def test_live_settings_read_during_a_trial(self):
        """What counts at once stays as it was read last when the model before comes back. The file is read once: it is a
        pipe, and another one has its name before the daemon has read the pipe's first byte."""
        late, pipe = os.path.join(self.folder, "late.gguf"), os.path.join(self.folder, "pipe")
        still = False
        for _ in range(20):
            first = self.engine_of(self.pid)
            self.configure(max_queue=5, model=late)
            self.lane.send(CONTROL, struct.pack("<II", RELOAD, 0))
            engine, end = first, time.monotonic() + WAIT
            while engine == first and time.monotonic() < end:
                with contextlib.suppress(IndexError):
                    engine = self.engine_of(self.pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(engine, signal.SIGSTOP)
            os.mkfifo(pipe)
            os.replace(pipe, self.conf)
            os.kill(self.pid, signal.SIGHUP)
            with open(self.conf, "w", encoding="utf-8") as f:  # waits until the daemon has opened it, too
                os.unlink(self.conf)
                self.configure(max_queue=7, model=late)
                f.write(self.settings(max_queue=0, model=late))
            self.reloaded()
            with contextlib.suppress(IndexError):
                still = self.engine_of(self.pid) == engine  # stopped before it had failed
            with contextlib.suppress(ProcessLookupError):
                os.kill(engine, signal.SIGCONT)
            self.lane.wait_ready(WAIT)
            if still:
                break
            self.configure(max_queue=64)  # it was too quick
            self.reload()
        self.assertTrue(still)
        self.nobody_may_wait()
        self.assertIn("loading the one before again", self.lines())

    def test_status_of_a_drain_counts_no_requests(self):
        """Everybody may ask systemd for it."""
        engine = self.engine_of(self.pid)
        os.kill(engine, signal.SIGSTOP)
        self.lane.request(prompt(b"Once upon a time", 20))
        self.assertEqual(self.lane.recv().type, ACCEPTED)
        self.lane.send(CONTROL, struct.pack("<II", DRAIN, 0))
        said = self.systemd.wait_for("STATUS=Draining")[-1]
        os.kill(engine, signal.SIGCONT)
        self.assertNotRegex(said, "running|waiting")

    def test_running_answers_go_on(self):
        rid = self.lane.request(prompt(b"Once upon a time", 100))
        events = []
        for e in self.lane.events(rid):
            events.append(e)
            if len(events) in (10, 30):
                os.kill(self.pid, signal.SIGHUP)
        again = Lane(self.folder)
        self.assertEqual(text_of(events), text_of(again.events(again.request(prompt(b"Once upon a time", 100)))))
        again.close()


class Model(Base):
    def test_a_reload_before_it_is_checked(self):
        """READY=1 is said when the model has been checked, once, and not for the reload."""
        for _ in range(20):
            pid, _ = self.daemon("lane", "gateway")
            heard = self.systemd.wait_for("Checking the model")
            engine = self.engine_of(pid)
            os.kill(engine, signal.SIGSTOP)
            heard.append(self.systemd.hear(0.3))
            if not any("READY=1" in h for h in heard):
                break
            os.kill(engine, signal.SIGCONT)  # it was too quick
            self.systemd.stop(pid)
        os.kill(pid, signal.SIGHUP)
        heard = [self.systemd.hear(0.4) for _ in range(3)]
        self.assertFalse(any("READY=1" in h for h in heard), heard)
        os.kill(engine, signal.SIGCONT)
        self.systemd.wait_for("READY=1")
        self.assertEqual(self.systemd.stop(pid), 0)

    def test_without_a_model_it_stays_and_says_so(self):
        """Ended, the next client would only start it again. The file that comes later is loaded."""
        late = os.path.join(self.folder, "late.gguf")
        self.configure(model=late)
        self.daemon("lane", "gateway")
        self.systemd.wait_for("READY=1")
        for _ in range(2):
            lane = Lane(self.folder)
            answer = list(lane.events(lane.request(prompt(b"Once", 4))))[-1]
            self.assertEqual(answer.code, "MODEL", answer)
            self.assertIn("late.gguf", answer.text)
            lane.close()
        self.systemd.wait_for("cannot be loaded")
        shutil.copy(MODEL, late)
        lane = Lane(self.folder)
        lane.wait_ready(WAIT)
        self.assertTrue(text_of(lane.events(lane.request(prompt(b"Once", 4)))))
        lane.close()

    def test_by_hand_it_ends(self):
        pid, log = self.systemd.start([PIPITD, "--model", os.path.join(self.folder, "late.gguf"), "--runtime-dir", self.folder],
                                      ["lane"], NOTIFY_SOCKET="")
        self.systemd.children.remove(pid)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 6)
        self.assertIn(b"late.gguf", log.read())


class Alive(Base):
    def test_watchdog_is_fed(self):
        self.daemon("lane", "gateway", WATCHDOG_USEC="600000")
        for _ in range(3):
            self.systemd.wait_for("WATCHDOG=1")

    def fill(self):
        """The manager's socket, which then takes no more."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
            s.setblocking(False)
            try:
                while True:
                    s.sendto(b"X=1", self.systemd.notify.getsockname())
            except BlockingIOError:
                pass

    def test_a_manager_that_reads_nothing(self):
        """Clients are served, and what it was to be told reaches it later, in order."""
        pid, _ = self.daemon("lane", "gateway", WATCHDOG_USEC="60000")
        self.systemd.wait_for("READY=1")
        lane = Lane(self.folder)
        lane.wait_ready(WAIT)
        self.fill()
        began = time.monotonic()
        while time.monotonic() < began + 1.5:  # signs of life and STATUS= come due
            asked = time.monotonic()
            self.assertTrue(text_of(lane.events(lane.request(prompt(b"Once", 4)))))
            lane.status()
            self.assertLess(time.monotonic() - asked, 1)
        os.kill(pid, signal.SIGHUP)
        for _ in range(20):
            lane.status()
            time.sleep(0.01)
        heard = self.systemd.wait_for("RELOADING=1") + self.systemd.wait_for("READY=1")
        self.assertLess(sum("WATCHDOG=1" in h for h in heard), 8, "those that wait are one")
        lane.close()
        self.fill()
        self.assertEqual(self.systemd.stop(pid), 0)

    def test_a_log_that_nobody_reads(self):
        self.configure(verbose="yes")
        _, log = self.daemon("lane", "gateway")
        self.systemd.wait_for("READY=1")
        for _ in range(3000):  # each is a line when it goes
            Lane(self.folder, timeout=5).close()
        lane = Lane(self.folder, timeout=5)
        os.set_blocking(log.fileno(), False)
        self.assertGreater(len(log.read()), 30000)
        lane.status()
        Lane(self.folder, timeout=5).close()
        time.sleep(0.2)
        self.assertRegex(log.read().decode(), r"pipitd: nobody read this: \d+ lines are lost")
        lane.close()


class Heirs(Base):
    """A daemon, and the next one with its journal."""

    def slowly(self):
        """With a model that takes milliseconds for a token: an endless answer is still under way when we look."""
        path = os.path.join(self.folder, "slow.gguf")
        subprocess.run([os.path.join(BUILD, "tools/pipit-mkmodel"), "--arch", "llama", "--layers", "4", "--hidden", "256", "--ffn",
                        "1024", "--heads", "8", "--kv-heads", "4", "--head-dim", "32", "--vocab", "300", "--ctx", "8192", "-t",
                        "F16", path], check=True, capture_output=True)
        self.configure(model=path, ctx=8192)

    def begin(self):
        self.pid, self.log = self.daemon("lane", "gateway")
        self.systemd.wait_for("READY=1")
        lane = Lane(self.folder)
        self.addCleanup(lane.close)
        lane.wait_ready(WAIT)
        return lane

    def killed(self, begin=True):
        self.systemd.stop(self.pid, signal.SIGKILL)
        return self.begin() if begin else None

    def some(self, lane, rid, n):
        """The first events, one read after the other: the daemon is in the middle of its answer."""
        return [e for _, e in zip(range(n), lane.events(rid))]

    def rest(self, lane, rid, events):
        """Those that are missing, by RESUME; all together."""
        lane.resume(rid, events[-1].seq + 1 if events else 1)
        events = events + list(lane.events(rid))
        self.assertEqual([e.seq for e in events], list(range(1, len(events) + 1)))
        return events


class Successor(Heirs):
    """The daemon is killed; the next one gets its journal."""

    def test_answer_goes_on_without_a_gap(self):
        lane = self.begin()
        for items in (prompt(b"Once upon a time", 150), prompt(b"Once upon a time", 150, temperature=0.8, seed=3, n_logprobs=2)):
            whole = list(lane.events(lane.request(items)))
            rid = lane.request(items)
            events = self.some(lane, rid, 40)
            lane = self.killed()
            events = self.rest(lane, rid, events)
            self.assertEqual(text_of(events), text_of(whole))
            self.assertEqual([(e.type, e.token) for e in events if e.type in (TOKEN, ALT)],
                             [(e.type, e.token) for e in whole if e.type in (TOKEN, ALT)])
            self.assertEqual((events[-1].reason, events[-1].n_new, events[-1].replay), ("length", 150, 1))
            self.assertTrue(events[-1].flags & F_REPLAYED)

    def test_a_saved_turn_is_said_once_and_in_full(self):
        """Killed when the session's file has its name, having heard nothing of the turn, or some of it: what is
        missing is said from the file, and the turn is not taken again."""
        self.killed_when_saved((0, 3), "length", n=60)

    def test_saved_at_the_contexts_end(self):
        """The same where the saved turn leaves no room for another."""
        self.killed_when_saved((3,), "context", "--ctx", "64", n=0)

    def killed_when_saved(self, heard, reason, *arguments, n):
        if not os.path.exists(HOOKED):
            self.skipTest("no tests/e2e/pipitd: this build has no tests")
        self.configure(state_dir=os.path.join(self.folder, "state"))
        self.arguments = arguments
        self.program = HOOKED

        def turn(lane, session, text, hook="", n=n):
            hook = order(hook) if hook else b""
            return lane.request(item(T_PROMPT, text) + item(T_SESSION, session) + hook + sampling(max_tokens=n), flags=F_SESSION)
        lane = self.begin()
        whole = list(lane.events(turn(lane, "whole", "Once upon a time")))
        after = list(lane.events(turn(lane, "whole", " Then", n=9)))
        self.assertEqual(after[-1].type, DONE if reason == "length" else ERROR)
        for k in heard:
            rid = turn(lane, f"cut{k}", "Once upon a time", f"kill-front:{k}")
            events = []
            try:
                for e in lane.events(rid, WAIT):
                    events.append(e)
            except (EOFError, ConnectionResetError):
                pass
            self.assertLess(len(events), 10)
            os.waitpid(self.pid, 0)
            self.systemd.children.remove(self.pid)
            self.assertTrue(os.path.exists(f"{self.folder}/state/sessions/{os.geteuid()}/cut{k}.session"), "not saved")
            lane = self.begin()
            events = self.rest(lane, rid, events)
            self.assertEqual(text_of(events), text_of(whole))
            self.assertEqual([e.token for e in events if e.type == TOKEN], [e.token for e in whole if e.type == TOKEN])
            self.assertEqual((events[-1].reason, events[-1].session, events[-1].n_new), (reason, 1, whole[-1].n_new))
            self.assertEqual(text_of(lane.events(turn(lane, f"cut{k}", " Then", n=9))), text_of(after))

    def test_those_who_wait_and_those_who_have_ended(self):
        lane = self.begin()
        ended = lane.request(prompt(b"There was", 20))
        answer = list(lane.events(ended))
        rids = [lane.request(prompt(b"Once upon a time", 120)) for _ in range(4)]
        first = self.some(lane, rids[0], 5)
        lane = self.killed()
        texts = {text_of(self.rest(lane, r, first if r == rids[0] else [])) for r in rids}
        self.assertEqual(len(texts), 1)
        again = self.rest(lane, ended, answer[:7])
        self.assertEqual([(e.type, e.seq) for e in again], [(e.type, e.seq) for e in answer])
        self.assertEqual(text_of(again), text_of(answer))

    def test_twice_in_the_batch_is_the_end(self):
        self.slowly()
        lane = self.begin()
        rid = lane.request(prompt(b"Once", 0, flags=S_IGNORE_END))
        events = self.some(lane, rid, 10)
        waits = lane.request(prompt(b"There", 5))
        self.assertEqual(next(lane.events(waits)).type, ACCEPTED)
        lane = self.killed()
        lane.resume(waits, 1)
        lane.resume(rid, 11)
        events += self.some(lane, rid, 12)  # it runs again
        lane = self.killed()
        end = self.rest(lane, rid, events)[-1]
        self.assertEqual((end.type, end.code), (ERROR, "ENGINE_CRASHED"))
        end = self.rest(lane, waits, [])[-1]
        self.assertEqual(end.type, DONE, vars(end))
        self.assertEqual(end.reason, "length")

    def test_an_engine_and_then_the_daemon(self):
        self.slowly()
        lane = self.begin()
        rid = lane.request(prompt(b"Once", 0, flags=S_IGNORE_END))
        events = self.some(lane, rid, 10)
        with open(f"/proc/{self.pid}/task/{self.pid}/children") as f:
            os.kill(int(f.read().split()[0]), signal.SIGKILL)
        while (st := lane.status()).type != STATUS or not (st.n_restarts and st.n_running):
            pass  # tokens of the first engine may lie before it; the second has the request now
        lane = self.killed()
        self.assertEqual(self.rest(lane, rid, events)[-1].code, "ENGINE_CRASHED")

    def test_cancelled_stays_cancelled(self):
        self.slowly()
        lane = self.begin()
        rid = lane.request(prompt(b"Once", 0, flags=S_IGNORE_END))
        self.some(lane, rid, 4)
        with open(f"/proc/{self.pid}/task/{self.pid}/children") as f:
            os.kill(int(f.read().split()[0]), signal.SIGSTOP)  # it cannot hear of it
        lane.cancel(rid)
        while lane.status().type != STATUS:  # tokens lie before it
            pass
        lane = self.killed()
        lane.resume(rid, 1)
        self.assertEqual(list(lane.events(rid))[-1].reason, "cancelled")

    def test_what_lay_in_a_lease_is_lost(self):
        lane = self.begin()
        out = lane.lease(1, 4096)
        rid = lane.request(prompt(b"Once", 3), kind=3, out=out)
        list(lane.events(rid))
        lane = self.killed()
        lane.resume(rid, 1)
        self.assertEqual(list(lane.events(rid))[-1].code, "NOT_FOUND")

    def test_ended_in_order_it_leaves_nothing(self):
        lane = self.begin()
        list(lane.events(lane.request(prompt(b"Once", 3))))
        self.assertEqual([n for n, _ in self.systemd.store], ["journal"])
        self.assertEqual(self.systemd.stop(self.pid), 0)
        while self.systemd.hear(0.1):
            pass
        self.assertEqual(self.systemd.store, [])

    def test_without_a_store_the_requests_are_lost(self):
        lane = self.begin()
        rid = lane.request(prompt(b"Once upon a time", 150))
        self.some(lane, rid, 5)
        while self.systemd.hear(0):
            pass
        self.systemd.store.clear()
        lane = self.killed()
        lane.resume(rid, 6)
        self.assertEqual(list(lane.events(rid))[-1].code, "NOT_FOUND")

    def test_a_journal_that_cannot_be_used(self):
        """Another size, garbage, no memory file: a line of log, a new journal, and service."""
        for what in ("size", "garbage", "pipe"):
            lane = self.begin()
            rid = lane.request(prompt(b"Once upon a time", 150))
            self.some(lane, rid, 5)
            self.systemd.stop(self.pid, signal.SIGKILL)
            while self.systemd.hear(0):
                pass
            if what == "size":
                self.configure(journal_bytes="2MiB")
            elif what == "garbage":
                os.pwrite(self.systemd.store[0][1], os.urandom(1 << 16), 0)
            else:
                self.systemd.store[0] = ("journal", os.pipe()[0])
            lane = self.begin()
            lane.resume(rid, 6)
            self.assertEqual(list(lane.events(rid))[-1].code, "NOT_FOUND", what)
            self.assertTrue(text_of(lane.events(lane.request(prompt(b"Once", 4)))))
            while self.systemd.hear(0):
                pass
            self.assertEqual([n for n, _ in self.systemd.store], ["journal"])
            self.systemd.stop(self.pid)

    @unittest.skipUnless(os.path.exists(PIPIT), "pipit is not built")
    def test_a_program_of_libpipit_notices_nothing(self):
        lane = self.begin()
        ask = [PIPIT, "ask", "--runtime-dir", self.folder, "--raw", "--temp", "0", "-n", "200", "Once upon a time"]
        clean = {k: v for k, v in os.environ.items() if not k.startswith("PIPIT_")}
        whole = subprocess.run(ask, capture_output=True, env=clean, timeout=WAIT, stdin=subprocess.DEVNULL).stdout
        p = subprocess.Popen(ask, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=clean, stdin=subprocess.DEVNULL, bufsize=0)
        got = p.stdout.read(60)
        self.killed()
        out, err = p.communicate(timeout=WAIT)
        self.assertEqual((got + out, p.returncode), (whole, 0), err)
        lane.close()


class Upgrade(Heirs):
    """The programs' files are replaced by those of another version while the daemon runs (upgrade.h)."""
    MARK = b"pipit-version-word="

    def setUp(self):
        super().setUp()
        self.programs = os.path.join(self.folder, "programs")
        os.mkdir(self.programs)
        for path in (PIPITD, os.path.join(BUILD, "daemon/worker/pipit-engine")) + ((GATEWAY,) if os.path.exists(GATEWAY) else ()):
            shutil.copy(path, self.programs)
        self.program = os.path.join(self.programs, "pipitd")

    def replace(self, *names):
        """As a package does: a new file with other bytes after the mark, renamed over the old one."""
        for name in names:
            path = os.path.join(self.programs, name)
            with open(path, "rb") as f:
                data = f.read()
            self.assertEqual(data.count(self.MARK), 1, "it does not say its version")
            at = data.index(self.MARK) + len(self.MARK)
            with open(path + ".new", "wb") as f:
                f.write(data[:at] + b"9" + data[at + 1:])
            os.chmod(path + ".new", 0o755)
            os.rename(path + ".new", path)

    def survives(self, then, *programs):
        """Programs are replaced and something happens while one request runs and another waits: the front hands over,
        and both have their whole text of the next one, the running one without a replay."""
        lane = self.begin()
        whole = text_of(lane.events(lane.request(prompt(b"Once upon a time", 150))))
        rid = lane.request(prompt(b"Once upon a time", 150))
        waits = lane.request(prompt(b"Once upon a time", 150))
        events = self.some(lane, rid, 5)
        self.replace(*programs)
        then()
        self.handed_over()
        lane = self.begin()
        got = self.rest(lane, rid, events)
        self.assertEqual(text_of(got), whole)
        self.assertFalse(got[-1].flags & F_REPLAYED)
        self.assertEqual(text_of(self.rest(lane, waits, [])), whole)

    def handed_over(self):
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self.systemd.children.remove(self.pid)
        self.assertEqual(code, 7)
        self.assertIn(b"its file was replaced", self.log.read())
        self.assertEqual([n for n, _ in self.systemd.store], ["journal"])

    def kill_engine(self):
        with open(f"/proc/{self.pid}/task/{self.pid}/children") as f:
            os.kill(int(f.read().split()[0]), signal.SIGKILL)

    def test_engine_of_another_version(self):
        """No answer is lost: neither the one under way nor those that wait."""
        lane = self.begin()
        whole = list(lane.events(lane.request(prompt(b"Once upon a time", 150))))
        rid = lane.request(prompt(b"Once upon a time", 150))
        waits = lane.request(prompt(b"Once upon a time", 150))
        events = self.some(lane, rid, 20)
        self.replace("pipitd", "pipit-engine")
        self.kill_engine()
        self.handed_over()
        lane = self.begin()
        for r, had in ((rid, events), (waits, [])):
            got = self.rest(lane, r, had)
            self.assertEqual(text_of(got), text_of(whole))
            self.assertEqual((got[-1].type, got[-1].reason), (DONE, "length"))

    def test_without_a_new_daemon_it_waits_for_one(self):
        """A package half unpacked: the engine's file is there, the daemon's not yet. It tries again, and then hands over."""
        lane = self.begin()
        self.replace("pipit-engine")
        self.kill_engine()
        rid = lane.request(prompt(b"Once upon a time", 20))
        time.sleep(0.3)
        self.assertEqual(os.waitpid(self.pid, os.WNOHANG), (0, 0))
        self.replace("pipitd")
        self.handed_over()
        self.assertTrue(text_of(self.rest(self.begin(), rid, [])))

    def test_by_hand_it_says_so(self):
        """Without a service manager nobody starts the next daemon: a request gets the cause."""
        folder = os.path.join(self.folder, "hand")
        os.mkdir(folder)
        with subprocess.Popen([self.program, "--config", self.conf, "--runtime-dir", folder, "--gateway", "no"], stderr=subprocess.DEVNULL,
                              env={"PATH": os.environ["PATH"], **{k: v for k, v in os.environ.items() if "SAN_OPTIONS" in k}}) as p:
            self.addCleanup(p.kill)
            end = time.monotonic() + WAIT
            while not os.path.exists(os.path.join(folder, "lane.sock")) and time.monotonic() < end:
                time.sleep(0.01)
            lane = Lane(folder)
            self.addCleanup(lane.close)
            lane.wait_ready(WAIT)
            self.replace("pipitd", "pipit-engine")
            self.pid = p.pid
            self.kill_engine()
            end = list(lane.events(lane.request(prompt(b"Once", 5)), WAIT))[-1]
            self.assertEqual((end.type, end.code), (ERROR, "MODEL"))
            self.assertIn("another version", end.text)
            p.kill()

    def test_a_reload_finds_it(self):
        """What the package says to running daemons: no answer is interrupted, none is lost."""
        self.survives(lambda: os.kill(self.pid, signal.SIGHUP), "pipitd", "pipit-engine")

    @unittest.skipUnless(os.path.exists(GATEWAY), "pipit-gateway was not built")
    def test_gateway_of_another_version(self):
        """It is served, and the daemon hands over when what runs has ended; what waits is the next one's."""
        gateway = [os.path.join(self.programs, "pipit-gateway"), "--runtime-dir", self.folder, "--listen-fd", "3"]
        self.survives(lambda: self.systemd.start(gateway, ["zmq"]), "pipitd", "pipit-engine", "pipit-gateway")

    @unittest.skipUnless(os.path.exists(GATEWAY), "pipit-gateway was not built")
    def test_old_gateway_is_refused(self):
        """A daemon whose file is its own, a gateway of another version: that one ends and is started anew."""
        self.begin()
        self.replace("pipit-gateway")
        gateway, log = self.systemd.start([os.path.join(self.programs, "pipit-gateway"), "--runtime-dir", self.folder, "--listen-fd", "3"], ["zmq"])
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(gateway, 0)[1]), 3)
        self.systemd.children.remove(gateway)
        self.assertIn(b"pipit-gateway is of version 9", log.read())
        self.assertEqual(os.waitpid(self.pid, os.WNOHANG), (0, 0))


@unittest.skipUnless(Client and os.path.exists(GATEWAY), "pipit-gateway or python3-zmq is missing")
class Gateway(Base):
    def test_sockets_outlive_both(self):
        """The gateway's socket answers after its own death; and after the front's, when it ends with 0."""
        path = os.path.join(self.folder, "zmq.sock")
        front, _ = self.daemon("lane", "gateway")
        self.systemd.wait_for("READY=1")
        epochs = set()
        for _ in range(3):
            gateway, _ = self.gateway(WATCHDOG_USEC="600000")
            self.systemd.wait_for("Serving ZeroMQ")
            self.systemd.wait_for("WATCHDOG=1")
            with Client(path) as c:
                epochs.add(c.ping(WAIT).gateway_epoch)
            self.systemd.stop(gateway, signal.SIGKILL)
            self.assertTrue(os.path.exists(path))
        self.assertEqual(len(epochs), 3)
        gateway, _ = self.gateway()
        self.systemd.wait_for("Serving ZeroMQ")
        self.systemd.stop(front, signal.SIGKILL)
        self.systemd.children.remove(gateway)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(gateway, 0)[1]), 0)
        self.assertTrue(os.path.exists(path))
        self.daemon("lane", "gateway")
        self.systemd.wait_for("READY=1")
        gateway, _ = self.gateway()
        with Client(path) as c:
            c.ping(WAIT)
        self.assertEqual(self.systemd.stop(gateway), 0)
        self.assertTrue(os.path.exists(path))

    def test_clients_cannot_lock_it_out(self):
        """Clients have all the lanes. The gateway is served all the same with one start, and a
        second gateway does not wait for the first."""
        self.configure(lanes=4)
        self.daemon("lane", "gateway")
        self.systemd.wait_for("READY=1")
        lanes = [Lane(self.folder) for _ in range(4)]
        self.assertRaises(Refused, Lane, self.folder)
        for _ in range(2):
            gateway, _ = self.gateway()
            self.systemd.wait_for("Serving ZeroMQ")
        with Client(os.path.join(self.folder, "zmq.sock")) as c:
            c.ping(WAIT)
        self.assertRaises(Refused, Lane, self.folder)
        for lane in lanes:
            lane.close()

    def test_refused_gateways_do_not_spin(self):
        """What is started again at once must take its time to end."""
        self.daemon("lane", "gateway")
        self.systemd.wait_for("READY=1")
        held = []
        for _ in range(16):  # more than there are lanes for gateways
            s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            s.connect(os.path.join(self.folder, "gateway.sock"))
            held.append(s)
        began = time.monotonic()
        for _ in range(3):
            gateway, _ = self.gateway()
            self.systemd.children.remove(gateway)
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(gateway, 0)[1]), 3)
        self.assertGreater(time.monotonic() - began, 3 * 0.05)
        for s in held:
            s.close()
        self.gateway()
        self.systemd.wait_for("Serving ZeroMQ")

    def test_gateway_waits_for_a_front_that_starts_late(self):
        gateway, _ = self.gateway()
        time.sleep(0.3)
        self.daemon("lane", "gateway")
        self.systemd.wait_for("Serving ZeroMQ")
        self.assertEqual(self.systemd.stop(gateway), 0)


if __name__ == "__main__":
    for program in (PIPITD, os.path.join(BUILD, "daemon/worker/pipit-engine")):
        if not os.path.exists(program):
            print(f"SKIP: {program} was not built", file=sys.stderr)
            sys.exit(77)
    unittest.main(verbosity=2, warnings="ignore")
