#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What pipitd does when things die, hang or stop: engine, gateway, itself; start-up, options, the
runtime directory, idleness."""
import array
import contextlib
import json
import os
import shutil
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import time
import unittest

from daemon import BUILD, DATA, PIPITD, SLOW, STORIES, Daemon, wait_until
from lane import (ACCEPTED, ALT, DONE, ERROR, F_DETACH, F_REPLAYED, S_IGNORE_END, STATES, T_PROMPT, TOKEN, Lane,
                  item, order, prompt, sampling, text_of)


def hook(what, n=60, **kw):
    return order(what) + prompt("Once upon a time", n, **kw)


class Case(unittest.TestCase):
    def start(self, *args, **kw):
        d = Daemon(*args, **kw)
        self.addCleanup(lambda: self.assertEqual(d.stop(), 0, d.text()))
        return d

    def plain(self, lane, n=60, **kw):
        return list(lane.events(lane.request(prompt("Once upon a time", n, **kw))))


class EngineDeath(Case):
    def test_killed_in_mid_stream(self):
        d = self.start()
        lane = d.ready()
        whole = self.plain(lane, 100, n_logprobs=2)
        rid = lane.request(prompt("Once upon a time", 100, n_logprobs=2))
        events = [lane.recv() for _ in range(40)]
        engine = d.child("pipit-engine")
        os.kill(engine, signal.SIGKILL)
        events += list(lane.events(rid))
        self.assertEqual([e.seq for e in events], list(range(1, len(events) + 1)))
        self.assertEqual(text_of(events), text_of(whole))
        self.assertEqual([(e.type, e.token) for e in events if e.type in (TOKEN, ALT)],
                         [(e.type, e.token) for e in whole if e.type in (TOKEN, ALT)])
        done = events[-1]
        self.assertEqual((done.reason, done.n_new, done.replay), ("length", 100, 1))
        self.assertTrue(done.flags & F_REPLAYED)
        self.assertNotEqual(d.child("pipit-engine"), engine)
        self.assertEqual(lane.status().n_restarts, 1)
        lane.close()

    def test_killed_with_sampling_and_stop_string(self):
        d = self.start(hooks=True)
        lane = d.ready()
        from lane import T_STOP
        items = item(T_STOP, "park") + prompt("Once upon a time", 80, temperature=0.7, seed=5)
        whole = list(lane.events(lane.request(items)))
        for at in (1, 2, 7, 13):
            events = list(lane.events(lane.request(items + order(f"crash:{at}"))))
            self.assertEqual(text_of(events), text_of(whole), at)
            self.assertEqual((events[-1].reason, events[-1].stop_index, events[-1].n_new, events[-1].seed),
                             (whole[-1].reason, whole[-1].stop_index, whole[-1].n_new, whole[-1].seed))
        lane.close()

    def test_twice_is_the_end_but_only_for_the_culprit(self):
        d = self.start("--sequences", "3", hooks=True)
        lane, other = d.ready(), d.ready()
        expected = text_of(self.plain(other, 80))
        good = other.request(prompt("Once upon a time", 80))
        bad = lane.request(hook("crash-always:20"))
        events = list(lane.events(bad))
        self.assertEqual((events[-1].type, events[-1].code), (ERROR, "ENGINE_CRASHED"))
        rest = list(other.events(good))
        self.assertEqual(rest[-1].type, DONE, rest[-1])
        self.assertEqual(text_of(rest), expected)
        self.assertEqual(text_of(self.plain(lane, 30)), expected[:len(text_of(self.plain(lane, 30)))])
        lane.close()
        other.close()

    def test_hanging_engine_is_replaced(self):
        d = self.start("--engine-timeout", str(int(SLOW)), hooks=True)  # a slow build's steps take longer too
        lane = d.ready()
        expected = text_of(self.plain(lane))
        for how in ("hang:10", "spin:10"):  # a thread that waits, one that uses its CPU for nothing
            events = list(lane.events(lane.request(hook(how))))
            self.assertEqual(text_of(events), expected, how)
            self.assertTrue(events[-1].flags & F_REPLAYED, how)
        self.assertGreaterEqual(d.text().count("no step ended in time"), 2)
        lane.close()

    def starve(self, look=lambda engine: None, **kw):
        path = os.path.join(tempfile.mkdtemp(prefix="ps-"), "large.gguf")
        self.addCleanup(shutil.rmtree, os.path.dirname(path))
        subprocess.run([os.path.join(BUILD, "tools/pipit-mkmodel"), "--arch", "llama", "--layers", "4", "--hidden", "512", "--ffn", "2048",
                        "--heads", "8", "--kv-heads", "8", "--ctx", "512", "--vocab", "300", path], check=True, stdout=subprocess.DEVNULL)
        d = self.start("--engine-timeout", str(int(SLOW)), model=path, backend="cpu", **kw)
        lane = d.ready()
        cpus, engine = os.sched_getaffinity(0), d.child("pipit-engine")
        hogs = []
        look(engine)

        def schedule(policy, where):
            for tid in map(int, os.listdir(f"/proc/{engine}/task")):
                os.sched_setaffinity(tid, where)
                with contextlib.suppress(PermissionError):  # back from IDLE, for who is not root
                    os.sched_setscheduler(tid, policy, os.sched_param(0))
        rid = lane.request(item(T_PROMPT, "x") + sampling(max_tokens=480, flags=S_IGNORE_END))
        while lane.recv().type != TOKEN:
            pass
        try:
            for _ in range(4):
                hogs.append(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
                os.sched_setaffinity(hogs[-1].pid, {min(cpus)})
            schedule(os.SCHED_IDLE, {min(cpus)})
            told = wait_until(lambda: "gets no CPU" in d.text(), 20)
        finally:
            for hog in hogs:
                hog.kill()
                hog.wait()
            schedule(os.SCHED_OTHER, cpus)
        self.assertTrue(told, d.text())
        self.assertEqual(list(lane.events(rid, 60 * SLOW))[-1].reason, "length")
        self.assertEqual(d.child("pipit-engine"), engine)
        lane.close()

    @unittest.skipIf(SLOW > 1, "a slow build's steps last longer than the wait for CPU that is to be told from them")
    def test_starving_engine_is_left_alone(self):
        """Whoever gets no CPU does not hang: killing it would not give its successor one."""
        self.starve()

    @unittest.skipIf(SLOW > 1 or os.getuid() != 0, "as above; only root mounts /proc")
    def test_starving_engine_that_nobody_sees(self):
        """As under the unit's ProtectProc=invisible: to the front, which may not trace it, the engine is not in /proc."""
        unseen = "mount -t proc -o hidepid=2 proc /proc && exec setpriv --regid 65534 --clear-groups --bounding-set -sys_ptrace -- \"$@\""
        prefix, owners = ["unshare", "--mount", "sh", "-c", unseen, "sh"], []
        if subprocess.run([*prefix, "true"], capture_output=True).returncode:
            self.skipTest("/proc cannot be mounted here")

        def look(engine):
            s = os.stat(f"/proc/{engine}/environ")
            owners.append((s.st_uid, s.st_gid))
        self.starve(prefix=prefix, look=look)
        self.assertEqual(owners, [(0, 0)])  # of a dumpable process they would be its own

    def test_scoring_is_repeated(self):
        d = self.start("--ctx", "512")
        lane = d.ready()
        items = item(T_PROMPT, "time and again " * 60) + sampling()
        whole = list(lane.events(lane.request(items, kind=5)))
        rid = lane.request(items, kind=5)
        events = [lane.recv()]
        os.kill(d.child("pipit-engine"), signal.SIGKILL)
        events += list(lane.events(rid))
        self.assertEqual([(e.token, e.logprob) for e in events if e.type == TOKEN],
                         [(e.token, e.logprob) for e in whole if e.type == TOKEN])
        lane.close()

    def test_queue_survives(self):
        d = self.start()
        lane = d.ready()
        rids = [lane.request(prompt("Once upon a time", 40)) for _ in range(4)]
        time.sleep(0.05)
        os.kill(d.child("pipit-engine"), signal.SIGKILL)
        texts, left = {r: b"" for r in rids}, set(rids)
        while left:
            e = lane.recv()
            self.assertNotEqual(e.type, ERROR, e)
            texts[e.id] += text_of([e])
            if e.type == DONE:
                left.discard(e.id)
        self.assertEqual(len(set(texts.values())), 1)
        lane.close()

    def replaced(self, folder, other):
        """The model's whole text; the events of a request that had begun to answer and of one that had not when
        `other` took the file's place and the engine was killed; what is answered afterwards."""
        model = os.path.join(folder, "m.gguf")
        shutil.copy(STORIES, model)
        d = self.start("--ctx", "256", "--sequences", "1", model=model, backend="ref")
        lane = d.ready()
        asked = prompt("Once upon a time", 200, flags=S_IGNORE_END)
        want = text_of(lane.events(lane.request(asked)))
        rid = lane.request(asked)
        events = {rid: []}
        while not text_of(events[rid]):
            events[rid].append(lane.recv())
        os.kill(d.child("pipit-engine"), signal.SIGSTOP)
        waiting = lane.request(prompt("Once upon a time", 30))
        events[waiting] = []
        while not events[waiting]:
            e = lane.recv()
            events[e.id].append(e)
        os.rename(other, model)
        os.kill(d.child("pipit-engine"), signal.SIGKILL)
        while not all(got and got[-1].type in (DONE, ERROR) for got in events.values()):
            e = lane.recv()
            events[e.id].append(e)
        new = text_of(lane.events(lane.request(prompt("Once upon a time", 30))))
        lane.close()
        d.stop()
        return want, events[rid], events[waiting], new

    def test_another_model_in_its_place(self):
        """Same shape and vocabulary, other weights: it must not go on with the first one's words."""
        with tempfile.TemporaryDirectory() as folder:
            with open(STORIES, "rb") as f:
                b = bytearray(f.read())
            n = len(b) // 2 // 32 * 32
            scaled = array.array("f", bytes(b[n:]))
            b[n:] = array.array("f", (v * 0.7 for v in scaled)).tobytes()
            other = os.path.join(folder, "other.gguf")
            with open(other, "wb") as f:
                f.write(b)
            want, begun, waiting, new = self.replaced(folder, other)
            self.assertEqual((begun[-1].type, begun[-1].code), (ERROR, "MODEL"), begun[-1])
            self.assertIn("another model", begun[-1].text)
            self.assertTrue(want.startswith(text_of(begun)), "nothing of the other model's")
            self.assertEqual((waiting[-1].type, text_of(waiting)), (DONE, new))
            self.assertFalse(want.startswith(new), "the other model says something else")

    def test_the_same_model_in_its_place(self):
        with tempfile.TemporaryDirectory() as folder:
            other = os.path.join(folder, "other.gguf")
            shutil.copy(STORIES, other)
            want, begun, waiting, _ = self.replaced(folder, other)
            self.assertEqual((begun[-1].type, begun[-1].replay, text_of(begun)), (DONE, 1, want))
            self.assertEqual(waiting[-1].type, DONE)

    def test_model_that_goes_away(self):
        with tempfile.TemporaryDirectory() as folder:
            model = os.path.join(folder, "m.gguf")
            with open(STORIES, "rb") as f, open(model, "wb") as g:
                g.write(f.read())
            d = self.start(model=model)
            lane = d.ready()
            os.rename(model, model + "x")
            os.kill(d.child("pipit-engine"), signal.SIGKILL)
            self.assertTrue(wait_until(lambda: STATES[lane.status().state] == "failed"))
            rid = lane.request(prompt("Once", 3))
            e = list(lane.events(rid))[-1]
            self.assertEqual(e.code, "MODEL")
            self.assertIn("m.gguf", e.text)
            os.rename(model + "x", model)
            self.assertTrue(wait_until(lambda: STATES[lane.status().state] == "ready", 20))
            lane.close()


class Gateway(Case):
    def test_killed_gateway_is_back_within_100_ms(self):
        if not os.path.exists(os.path.join(BUILD, "daemon/gateway/pipit-gateway")):
            self.skipTest("pipit-gateway is not built")
        d = self.start(gateway="yes")
        lane = d.ready()
        for i in range(5):
            pid = wait_until(lambda: d.child("pipit-gateway"))
            self.assertTrue(pid)
            if i == 0:
                time.sleep(1.1)
            began = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            new = wait_until(lambda: d.child("pipit-gateway") not in (None, pid) and d.child("pipit-gateway"), step=0.001)
            self.assertTrue(new)
            self.assertLess(time.monotonic() - began, 0.1 * SLOW)
        self.assertEqual(STATES[lane.status().state], "ready")
        lane.close()


class Stopping(Case):
    def slow_model(self, folder):
        path = os.path.join(folder, "slow.gguf")
        r = subprocess.run([os.path.join(BUILD, "tools/pipit-mkmodel"), "--arch", "llama", "--layers", "4", "--hidden", "256",
                            "--ffn", "1024", "--heads", "8", "--kv-heads", "4", "--head-dim", "32", "--vocab", "300",
                            "--ctx", "8192", "-t", "F16", path], capture_output=True, text=True)
        self.assertEqual(r.returncode, 0, r.stderr)
        return path

    def test_while_streaming(self):
        d = Daemon("--sequences", "2")
        lane = d.ready()
        rid = lane.request(prompt("Once", 0, flags=S_IGNORE_END))
        waiting = [lane.request(prompt("Once", 0, flags=S_IGNORE_END)) for _ in range(3)]
        [lane.recv() for _ in range(8)]
        began = time.monotonic()
        d.process.send_signal(signal.SIGTERM)
        ends = {}
        while len(ends) < 4:
            e = lane.recv()
            if e.type == DONE:
                ends[e.id] = e.reason
        self.assertEqual(ends, {r: "shutdown" for r in [rid, *waiting]})
        self.assertEqual(d.process.wait(10), 0)
        self.assertLess(time.monotonic() - began, 2 * SLOW)
        self.assertFalse(os.path.exists(os.path.join(d.folder, "lane.sock")))
        self.assertEqual(d.stop(), 0)
        lane.close()

    def test_in_a_4k_prefill_on_ref(self):
        with tempfile.TemporaryDirectory() as folder:
            d = Daemon("--ctx", "5000", "--lane-bytes", "4MiB", model=self.slow_model(folder))
            lane = d.ready()
            rid = lane.request(prompt("x" * 4096, 5))
            self.assertEqual(lane.recv().type, ACCEPTED)
            time.sleep(0.4)
            self.assertEqual(lane.status().n_running, 1)
            began = time.monotonic()
            d.process.send_signal(signal.SIGTERM)
            end = list(lane.events(rid))[-1]
            self.assertEqual(end.reason, "shutdown")
            self.assertEqual(d.process.wait(10), 0)
            self.assertLess(time.monotonic() - began, 2 * SLOW)
            self.assertNotIn("did not end its answers in time", d.text())
            d.stop()
            lane.close()

    def test_cancel_in_a_long_prefill(self):
        with tempfile.TemporaryDirectory() as folder:
            d = self.start("--ctx", "5000", "--lane-bytes", "4MiB", model=self.slow_model(folder))
            lane = d.ready()
            rid = lane.request(prompt("x" * 4096, 5))
            time.sleep(0.3)
            began = time.monotonic()
            lane.cancel(rid)
            self.assertEqual(list(lane.events(rid))[-1].reason, "cancelled")
            self.assertLess(time.monotonic() - began, 1 * SLOW)
            lane.close()

    def test_front_killed_takes_its_children_along(self):
        d = Daemon(gateway="yes")
        d.ready().close()
        pids = [p for p in (d.child("pipit-engine"), d.child("pipit-gateway")) if p]
        d.process.kill()
        d.process.wait()
        self.assertTrue(wait_until(lambda: not any(os.path.exists(f"/proc/{p}") for p in pids), 3))
        e = Daemon(folder=d.folder)  # the stale socket is no obstacle
        e.ready().close()
        self.assertEqual(e.stop(), 0)
        d.log.close()

    def test_while_loading(self):
        d = Daemon(wait=False)
        wait_until(lambda: os.path.exists(os.path.join(d.folder, "lane.sock")))
        self.assertEqual(d.stop(), 0)


class Starting(Case):
    def test_hello_within_200_ms(self):
        times = []
        for _ in range(5):
            d = Daemon(wait=False)
            lane = d.lane()
            times.append(time.monotonic() - d.began)
            self.assertIn(STATES[lane.hello.state], ("loading", "ready"))
            lane.close()
            self.assertEqual(d.stop(), 0)
        self.assertLess(sorted(times)[1], 0.2 * SLOW, times)

    def test_requests_wait_for_the_model(self):
        d = Daemon(wait=False)
        lane = d.lane()
        events = self.plain(lane, 5)
        self.assertEqual(events[-1].reason, "length")
        self.assertEqual(d.stop(), 0)
        lane.close()

    def test_second_daemon_is_refused(self):
        d = self.start()
        r = subprocess.run([PIPITD, "--model", STORIES, "--backend", "ref", "--runtime-dir", d.folder], capture_output=True,
                           text=True, timeout=20)
        self.assertEqual(r.returncode, 4, r.stderr)
        self.assertIn(f"pid {d.process.pid}", r.stderr)
        d.lane().close()

    def run_code(self, *args, env=None):
        clean = {k: v for k, v in os.environ.items() if not k.startswith("PIPIT_")}
        r = subprocess.run([PIPITD, *args], capture_output=True, text=True, timeout=30 * SLOW, env={**clean, **(env or {})})
        self.assertEqual(r.stdout if r.returncode not in (0, 4) else "", "")
        return r.returncode, r.stderr

    def test_usage(self):
        with tempfile.TemporaryDirectory() as folder:
            dir_args = ("--runtime-dir", folder)
            for args, says in [
                ((), "--model"),
                (("--nonsense",), "nonsense"),
                (("--lanes", "0"), "1..4096"),
                (("--lanes", "x"), "1..4096"),
                (("--ctx", "-1"), "0..16777216"),
                (("--threads", "5000"), "0..1024"),
                (("--backend", "tpu"), "auto, ref, cpu"),
                (("--gateway", "perhaps"), "no"),
                (("--lane-bytes", "1"), "64KiB"),
                (("--instance", "../x"), "--instance"),
                (("extra",), "extra"),
                (("--kv", "nonsense"), "policy"),
                (("--kv", "f16+exit:0.9"), "early-exit head"),
                (("--kv", "sparq:r=16,k=128"), "keys have 8 dims"),
                (("--config", "/nonexistent"), "/nonexistent"),
            ]:
                model = () if says == "--model" else ("--model", STORIES)
                code, err = self.run_code(*model, *dir_args, *args)
                self.assertEqual(code, 2, (args, err))
                self.assertIn(says, err, args)

    def test_settings_files_and_environment(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "conf")
            with open(path, "w") as f:
                f.write(f"model = {STORIES}\nbackend = ref\nctx = 100\nlanes = 2\nmax-queue = 3\n")
            args = ("plan", "--json", "--config", path)

            def ctx(*more, env=None):
                clean = {k: v for k, v in os.environ.items() if not k.startswith("PIPIT_")}
                out = subprocess.run([PIPITD, *args, *more], capture_output=True, text=True, check=True,
                                     env={**clean, **(env or {})}).stdout
                return json.loads(out)
            self.assertEqual(ctx()["ctx"] if "ctx" in ctx() else 100, 100)
            small, large = ctx(), ctx("--lanes", "20")
            self.assertEqual(large["lane_bytes"] - small["lane_bytes"], 18 << 20)
            self.assertEqual(ctx(env={"PIPIT_LANES": "20"})["lane_bytes"], large["lane_bytes"])
            self.assertEqual(ctx("--lanes", "2", env={"PIPIT_LANES": "20"})["lane_bytes"], small["lane_bytes"])
            with open(path, "a") as f:
                f.write("nonsense = 1\n")
            code, err = self.run_code(*args)
            self.assertEqual(code, 2)
            self.assertIn("conf:6", err)

    def test_bad_models(self):
        with tempfile.TemporaryDirectory() as folder:
            bad = os.path.join(folder, "bad.gguf")
            with open(STORIES, "rb") as f:
                raw = f.read()
            for data in (b"", b"GGUF", raw[:1000], raw[:len(raw) // 2], b"GGML" + raw[4:], os.urandom(5000)):
                with open(bad, "wb") as f:
                    f.write(data)
                code, err = self.run_code("--model", bad, "--runtime-dir", folder, "--backend", "ref", "--gateway", "no")
                self.assertEqual(code, 6, (len(data), err))
                self.assertIn("pipit-engine: ", err)
            code, err = self.run_code("--model", os.path.join(folder, "none"), "--runtime-dir", folder, "--gateway", "no")
            self.assertEqual(code, 6, err)
            code, err = self.run_code("--model", STORIES, "--runtime-dir", folder, "--backend", "ref", "--memory", "1MiB",
                                      "--gateway", "no")
            self.assertEqual(code, 4, err)
            code, _ = self.run_code("plan", "--model", STORIES, "--backend", "ref", "--memory", "1MiB")
            self.assertEqual(code, 4)

    def test_runtime_directories(self):
        with tempfile.TemporaryDirectory() as folder:
            code, err = self.run_code("--model", STORIES, "--runtime-dir", os.path.join(folder, "x" * 100))
            self.assertEqual(code, 2, err)
            self.assertIn("107", err)
            path = os.path.join(folder, "file")
            open(path, "w").close()
            code, err = self.run_code("--model", STORIES, "--runtime-dir", path)
            self.assertEqual(code, 2, err)
            d = self.start(folder=os.path.join(folder, ""))
            mode = stat.S_IMODE(os.stat(os.path.join(folder, "lane.sock")).st_mode)
            self.assertEqual(mode, 0o600)
            os.chmod(folder, 0o700)

    def test_nobody_else_connects_where_everyone_may_write(self):
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o1777)
            self.start("--gateway", "yes", folder=folder)
            path = os.path.join(folder, "zmq.sock")
            self.assertTrue(wait_until(lambda: os.path.exists(path)))
            for name in ("lane.sock", "zmq.sock"):
                self.assertEqual(os.stat(os.path.join(folder, name)).st_mode & 0o007, 0, name)
            os.chmod(folder, 0o700)

    def test_socket_activation(self):
        import socket
        with tempfile.TemporaryDirectory() as folder:
            s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            s.bind(os.path.join(folder, "lane.sock"))
            s.listen(10)
            notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            notify.bind(os.path.join(folder, "notify"))
            notify.settimeout(10 * SLOW)
            early = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            early.connect(os.path.join(folder, "lane.sock"))  # before there is a daemon

            script = 'LISTEN_PID=$$ exec "$@" 3<&%d' % s.fileno()
            p = subprocess.Popen(["sh", "-c", script, "sh", PIPITD, "--model", STORIES, "--backend", "ref", "--gateway", "no",
                                  "--runtime-dir", folder], pass_fds=[s.fileno()], stderr=subprocess.PIPE, text=True,
                                 env={**os.environ, "LISTEN_FDS": "1", "LISTEN_FDNAMES": "lane",
                                      "NOTIFY_SOCKET": os.path.join(folder, "notify"), "WATCHDOG_USEC": "600000"})
            self.addCleanup(p.kill)
            said = b""
            while b"STATUS=ready" not in said:
                said += notify.recv(4096) + b"\n"
            self.assertIn(b"READY=1", said)
            lane = Lane(folder)
            self.assertEqual(self.plain(lane, 3)[-1].reason, "length")
            lane.close()
            p.terminate()
            while b"STOPPING=1" not in said:
                said += notify.recv(4096) + b"\n"
            _, err = p.communicate(timeout=10)
            self.assertEqual(p.returncode, 0, err)
            self.assertTrue(os.path.exists(os.path.join(folder, "lane.sock")))  # systemd's, not ours to remove
            s.close()
            early.close()
            notify.close()


class Idle(Case):
    def test_context_switches(self):
        """At most 60 a minute and process: counted over 6 s, so 6 at most."""
        d = self.start(gateway="yes")
        d.ready().close()
        time.sleep(2)
        pids = [p for p in (d.process.pid, d.child("pipit-engine"), d.child("pipit-gateway")) if p]

        def switches(pid):
            n = 0
            for task in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/status") as f:
                    n += sum(int(l.split()[1]) for l in f if "ctxt_switches" in l)
            return n
        before = [switches(p) for p in pids]
        time.sleep(6)
        for p, b in zip(pids, before):
            with open(f"/proc/{p}/comm") as f:
                self.assertLessEqual(switches(p) - b, 6, f.read() + d.text())


if __name__ == "__main__":
    unittest.main(verbosity=2)
