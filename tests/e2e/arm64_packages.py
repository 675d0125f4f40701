#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The arm64 Debian packages on x86-64: laid out below a folder, every program of them run by qemu-user, and the
daemon, its gateway and the command line tested as a native build is. A long command, not in CI (about two
minutes, and the first time the packages).

The folder looks like a build folder to the tests beside this file: scripts in the place of the programs start
the emulator. What finds a process by its name, or measures time, cannot be run this way and is not.

Usage: tests/e2e/arm64_packages.py [FOLDER]     FOLDER: with the packages, default build-deb-arm64, where they
are built if there are none. QEMU_CPU says what CPU they see (default max). Exits 77 without qemu-aarch64 or
the arm64 libraries that the packages need (tools/setup.sh --package-arm64)."""
import glob
import gzip
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(os.path.dirname(HERE))
STORIES = os.path.join(HERE, "../data/stories260K.gguf")
# Of the tests of a native build: files, and classes or tests in them where not all can be run.
SUITES = {"test_sessions": ["Files.test_private_listed_and_removed"]}
PROGRAMS = {"usr/bin/pipitd": "daemon/front/pipitd", "usr/bin/pipit": "client/pipit",
            "usr/libexec/pipit/pipit-engine": "daemon/worker/pipit-engine",
            "usr/libexec/pipit/pipit-gateway": "daemon/gateway/pipit-gateway"}


def skip(reason):
    print(f"SKIP: {reason}", file=sys.stderr)
    sys.exit(77)


def packages(folder):
    """Those that are there, if no file of the tree is younger."""
    found = glob.glob(os.path.join(folder, "*_arm64.deb"))
    files = subprocess.run(["git", "-C", SOURCE, "ls-files"], capture_output=True, text=True, check=True).stdout.splitlines()
    newest = max(os.path.getmtime(os.path.join(SOURCE, f)) for f in files if os.path.isfile(os.path.join(SOURCE, f)))
    if not found or min(map(os.path.getmtime, found)) < newest:
        for old in found:
            os.unlink(old)
        subprocess.run([os.path.join(SOURCE, "deploy/build_deb.sh"), "--arch", "arm64", folder], check=True)
        found = glob.glob(os.path.join(folder, "*_arm64.deb"))
    return found


def script(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as f:
        f.write("#!/bin/sh\n" + text + "\n")
    os.chmod(path, 0o755)


def lay_out(folder, debs):
    """The root folder of the packages, and what looks like a build folder."""
    root, build = os.path.join(folder, "root"), os.path.join(folder, "build")
    for deb in debs:
        subprocess.run(["dpkg-deb", "-x", deb, root], check=True)
    libraries = os.path.join(root, "usr/lib/aarch64-linux-gnu")
    for installed, built in PROGRAMS.items():
        path = os.path.join(root, installed)
        emulate = f'exec qemu-aarch64 -E LD_LIBRARY_PATH={libraries} '
        if "libexec" in installed:  # pipitd starts these itself
            os.rename(path, path + ".arm64")
            script(path, f'{emulate} {path}.arm64 "$@"')
            path += ".arm64"
        script(os.path.join(build, built), f'{emulate} {path} "$@"')
    return root, build


class Packages(unittest.TestCase):
    root = build = None

    def run_program(self, *argv):
        done = subprocess.run([os.path.join(self.build, argv[0]), *argv[1:]], capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout

    def test_programs_are_of_that_architecture_and_of_one_version(self):
        n = 0
        for path in glob.glob(self.root + "/usr/bin/*") + glob.glob(self.root + "/usr/libexec/pipit/*.arm64"):
            with open(path, "rb") as f:
                head = f.read(20)
            if head[:4] == b"\x7fELF":
                n += 1
                self.assertEqual(int.from_bytes(head[18:20], "little"), 183, path)  # EM_AARCH64
        self.assertGreaterEqual(n, 8)
        with open(os.path.join(SOURCE, "meson.build")) as f:
            version = re.search(r"version: '([^']*)',", f.read()).group(1)
        self.assertIn(version, self.run_program("client/pipit", "--version"))
        self.assertIn(version, self.run_program("daemon/front/pipitd", "--version"))

    def test_pages_say_what_the_programs_say(self):
        for page, *program in (("man8/pipitd.8", "daemon/front/pipitd"), ("man1/pipit.1", "client/pipit", "ask")):
            with gzip.open(os.path.join(self.root, "usr/share/man", page + ".gz"), "rt") as f:
                text = f.read().replace("\\", "")
            options = re.findall(r"^ +(?:-\w[ \w]*, )?(--[a-z-]+)", self.run_program(*program, "--help"), re.M)
            self.assertTrue(options)
            for option in options:
                self.assertIn(option, text)

    def test_plan(self):
        told = self.run_program("daemon/front/pipitd", "plan", "--model", STORIES, "--backend", "cpu", "--ctx", "256",
                                "--kv", "fp8+keyformer:50%")
        self.assertRegex(told, r"policy fp8\+.*keyformer:50%")
        self.assertIn("fits", told)

    def test_answers(self):
        from harness import CliDaemon  # once PIPIT_BUILD is set
        from test_daemon import ONCE
        state = tempfile.mkdtemp(prefix="ps-")
        self.addCleanup(shutil.rmtree, state)
        daemon = CliDaemon("--state-dir", state, backend="cpu", gateway="yes")
        try:
            ask = ("ask", "--raw", "--temp", "0", "-n", "40")
            rc, out, err = daemon.cli(*ask, "Once upon a time")
            whole = out.rstrip(b"\n")
            self.assertEqual((rc, whole[:len(ONCE)], err), (0, ONCE, ""))
            self.assertIn("neon", daemon.text())
            halves = daemon.cli(*ask[:-1], "20", "--session", "s", "Once upon a time")[1].rstrip(b"\n")
            daemon.stop()
            daemon = CliDaemon("--state-dir", state, backend="cpu", gateway="yes")
            halves += daemon.cli(*ask[:-1], "20", "--session", "s", "")[1].rstrip(b"\n")
            self.assertEqual(halves, whole)
            self.ask_zmq(daemon, whole)
        finally:
            daemon.stop()

    def ask_zmq(self, daemon, want):
        import zclient
        client = zclient.Client(os.path.join(daemon.folder, "zmq.sock"))
        request = zclient.pb.Request(id=os.urandom(16))
        request.generate.prompt = b"Once upon a time"
        request.generate.sampling.max_tokens = 40
        request.generate.sampling.temperature = 0
        client.socket.send(request.SerializeToString())
        text = b""
        while client.socket.poll(60000):
            event = zclient.pb.Event.FromString(client.socket.recv())
            text += event.delta.text
            if event.HasField("done") or event.HasField("error"):
                break
        client.close()
        self.assertEqual(text, want)


def main():
    if not shutil.which("qemu-aarch64"):
        skip("qemu-aarch64 (package qemu-user) is not installed")
    if not os.path.exists("/usr/lib/aarch64-linux-gnu/libzmq.so.5"):
        skip("the arm64 libraries are not installed: tools/setup.sh --package-arm64")
    os.chdir(SOURCE)
    debs = packages(os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else "build-deb-arm64"))
    with tempfile.TemporaryDirectory(prefix="arm64-") as folder:
        Packages.root, Packages.build = lay_out(folder, debs)
        os.environ["PIPIT_BUILD"] = Packages.build
        os.environ.setdefault("PIPIT_SLOW", "8")
        os.environ.setdefault("QEMU_CPU", "max")
        sys.path.insert(0, HERE)
        load = unittest.defaultTestLoader
        suite = load.loadTestsFromTestCase(Packages)
        for name, tests in SUITES.items():
            suite.addTests(load.loadTestsFromNames([f"{name}.{t}" for t in tests] or [name]))
        result = unittest.TextTestRunner(verbosity=2).run(suite)
    bad = len(result.failures) + len(result.errors)
    print(f"{result.testsRun - bad - len(result.skipped)} passed, {bad} failed, {len(result.skipped)} skipped")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
