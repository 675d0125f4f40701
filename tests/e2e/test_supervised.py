#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""pipitd and pipit-gateway as systemd runs them, with this script in systemd's place: sockets made
beforehand and handed over by name, readiness, reload, signs of life. What only a booted systemd can
show (units, sandbox, restarts) is tests/e2e/booted.sh."""
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
import unittest

from lane import Lane, prompt, text_of

try:
    from zclient import Client
except SystemExit:
    Client = None

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("PIPIT_BUILD", os.path.join(SOURCE, "build"))
MODEL = os.path.join(SOURCE, "tests/data/stories260K.gguf")
PIPITD = os.path.join(BUILD, "daemon/front/pipitd")
GATEWAY = os.path.join(BUILD, "daemon/gateway/pipit-gateway")
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

    def start(self, argv, names, **env):
        """The service: its sockets as descriptors 3 and up, as sd_listen_fds(3) has it."""
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            high = [os.dup2(self.listening[n].fileno(), 100 + i) for i, n in enumerate(names)]
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
            self.notify.settimeout(left)
            try:
                heard.append(self.notify.recv(4096).decode())
            except socket.timeout:
                continue
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
        shutil.rmtree(self.folder)


class Base(unittest.TestCase):
    def setUp(self):
        self.systemd = Systemd()
        self.addCleanup(self.systemd.close)
        self.folder = self.systemd.folder
        self.conf = os.path.join(self.folder, "conf")
        self.configure()

    def configure(self, **settings):
        lines = {"model": MODEL, "backend": "ref", "threads": "1", "ctx": "256", **settings}
        with open(self.conf, "w", encoding="utf-8") as f:
            f.writelines(f"{k.replace('_', '-')} = {v}\n" for k, v in lines.items())

    def daemon(self, *names, **env):
        return self.systemd.start([PIPITD, "--config", self.conf, "--runtime-dir", self.folder], names, **env)

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
        self.assertIn("MONOTONIC_USEC=", self.systemd.wait_for("RELOADING=1")[-1])
        self.systemd.wait_for("READY=1")

    def lines(self):
        """What was logged up to now, by way of a stop."""
        self.assertEqual(self.systemd.stop(self.pid), 0)
        return self.log.read().decode()

    def test_live_settings_count_at_once(self):
        self.configure(max_queue=0, sequences=1, verbose="yes")
        self.reload()
        first = self.lane.request(prompt(b"Once upon a time", 200))
        other = Lane(self.folder)
        answer = list(other.events(other.request(prompt(b"There", 4))))[-1]
        self.assertEqual(answer.code, "BUSY", answer)
        self.lane.cancel(first)
        list(self.lane.events(first))
        other.close()
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
        self.assertIn("conf:6: stall-timeout", text)
        self.assertIn("0.1..3600", text)
        self.assertIn("old configuration stays", text)

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
    unittest.main(verbosity=2)
