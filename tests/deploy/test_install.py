#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What `meson install` lays out: the daemon runs from it, the pages and completions know every option,
the sample configuration is accepted as it stands and with every line switched on, the units keep
their exposure below the limits. In a booted system all of it is tested by tests/e2e/booted.sh."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("PIPIT_BUILD", SOURCE / "build"))
MODEL = SOURCE / "tests/data/stories260K.gguf"
# Limits of `systemd-analyze security`, times ten.
EXPOSURE = {"pipitd@.service": 7, "pipit-gateway@.service": 3}


def run(*argv, **kw):
    return subprocess.run([str(a) for a in argv], capture_output=True, text=True, check=False, timeout=120, **kw)


def option(name):
    values = json.loads(run("meson", "introspect", "--buildoptions", BUILD).stdout)
    return next(o["value"] for o in values if o["name"] == name)


def setUpModule():
    Installed.folder = tempfile.mkdtemp(prefix="pipit-install-")
    unittest.addModuleCleanup(shutil.rmtree, Installed.folder)
    done = run("meson", "install", "-C", BUILD, "--no-rebuild", "--quiet", "--destdir", Installed.folder)
    assert done.returncode == 0, done.stderr


class Installed(unittest.TestCase):
    folder = None

    @classmethod
    def setUpClass(cls):
        cls.root = pathlib.Path(cls.folder + option("prefix"))
        conf = option("sysconfdir")
        cls.conf = pathlib.Path(cls.folder + conf if conf.startswith("/") else cls.root / conf) / "pipit/default.conf"
        lib = pathlib.Path(option("libdir"))
        os.environ["LD_LIBRARY_PATH"] = str(cls.root / lib)
        os.environ.setdefault("ASAN_OPTIONS", "verify_asan_link_order=0")
        cls.programs = sorted((cls.root / "bin").iterdir()) + [cls.root / "libexec/pipit/pipit-gateway"]
        cls.units = sorted(p for p in cls.root.glob("lib/systemd/system/*"))

    def helps(self, program):
        """--help of the program and of its commands, by name of the command."""
        top = run(program, "--help").stdout
        commands = re.findall(r"^  ([a-z]+)  +\S", top, re.M) if "COMMAND" in top else []
        commands += ["plan"] if program.name == "pipitd" else []
        return {"": top, **{c: run(program, c, "--help").stdout for c in commands}}


class Layout(Installed):
    def test_everything_is_there(self):
        for path in ("bin/pipitd", "bin/pipit", "libexec/pipit/pipit-engine", "libexec/pipit/pipit-gateway", "include/pipit.h",
                     "share/pipit/pipit.proto", "lib/python3/dist-packages/pipit/client.py", "lib/python3/dist-packages/pipit/pipit.h", "lib/sysusers.d/pipit.conf", "lib/tmpfiles.d/pipit.conf", "share/man/man8/pipitd.8",
                     "share/man/man7/pipit-policy.7",
                     "lib/systemd/system/pipitd@.service", "lib/systemd/system/pipit-gateway@.socket"):
            self.assertTrue((self.root / path).is_file(), path)
        self.assertTrue(list(self.root.glob("lib*/**/pkgconfig/libpipit.pc")))
        for unit in self.units:
            self.assertNotRegex(unit.read_text(), r"@\w+dir@")

    def test_policy_page_has_every_word(self):
        """Of the list that a refusal gives, and no heading without a text."""
        page = (self.root / "share/man/man7/pipit-policy.7").read_text().replace("\\", "")
        words = run(self.root / "bin/pipitd", "plan", "--model", MODEL, "--kv", "?").stderr.partition("the words are: ")[2].split()
        self.assertGreater(len(words), 10)
        for word in words:
            self.assertIn(f"fB{word}", page)
        for man in self.root.glob("share/man/man*/*"):
            self.assertNotRegex(man.read_text(), r"\n\.SH [^\n]*\n\.SH", man)

    def test_daemon_finds_its_processes(self):
        with tempfile.TemporaryDirectory(prefix="pipit-") as folder:
            log = open(os.path.join(folder, "log"), "w+", encoding="utf-8")
            daemon = subprocess.Popen([self.root / "bin/pipitd", "--model", MODEL, "--backend", "ref", "--ctx", "128", "--threads",
                                       "1", "--runtime-dir", folder], stderr=log)
            try:
                pipit = self.root / "bin/pipit"
                waited = run(pipit, "wait", "--timeout", "60", "--runtime-dir", folder)
                asked = run(pipit, "ask", "--raw", "--temp", "0", "-n", "8", "Once", "--runtime-dir", folder)
                log.seek(0)
                self.assertEqual((waited.returncode, asked.returncode), (0, 0), log.read())
                self.assertTrue(asked.stdout.strip())
                end = time.monotonic() + 30  # the gateway begins beside the daemon
                while not os.path.exists(os.path.join(folder, "zmq.sock")) and time.monotonic() < end:
                    time.sleep(0.05)
                self.assertTrue(os.path.exists(os.path.join(folder, "zmq.sock")))
            finally:
                daemon.terminate()
                daemon.wait(30)
                log.close()

    def test_a_changed_configuration_is_kept(self):
        with tempfile.TemporaryDirectory() as folder:
            target = pathlib.Path(folder) / "etc/x.conf"
            target.parent.mkdir()
            target.write_text("mine\n")
            done = run(SOURCE / "deploy/install_conf.sh", self.conf, "/etc/x.conf", env={**os.environ, "DESTDIR": folder})
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(target.read_text(), "mine\n")
            self.assertEqual((target.parent / "x.conf.sample").read_text(), self.conf.read_text())


class Configuration(Installed):
    def accepted(self, text):
        with tempfile.NamedTemporaryFile("w", suffix=".conf", encoding="utf-8") as f:
            f.write(text)
            f.flush()
            return run(self.root / "bin/pipitd", "--config", f.name, "--version")

    def test_sample(self):
        text = self.conf.read_text()
        self.assertIn("model = ", text)
        on = re.sub(r"^#([a-z-]+ = )", r"\1", text, flags=re.M)
        for each in (text, on):
            done = self.accepted(each)
            self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotEqual(self.accepted(on.replace("backend = auto", "backend = abacus")).returncode, 0)
        known = set(re.findall(r"--([a-z-]+)", re.sub(r"^ {20,}.*$", "", self.helps(self.root / "bin/pipitd")[""], flags=re.M)))
        keys = set(re.findall(r"^([a-z-]+) = ", on, re.M))
        self.assertEqual(known - keys, {"config", "help", "version", "instance", "runtime-dir", "cache-dir"})


class Texts(Installed):
    def test_every_program_has_a_page_with_every_option(self):
        for program in self.programs:
            pages = list(self.root.glob(f"share/man/man?/{program.name}.[18]"))
            self.assertEqual(len(pages), 1, program.name)
            page = pages[0].read_text().replace("\\-", "-")
            for command, text in self.helps(program).items():
                options = re.findall(r"^  (?:-\w(?: [A-Z]+)?, |    |)(--[a-z][a-z-]*)", text, re.M)
                self.assertTrue(options or program.name == "pipit", program.name)
                for o in options:
                    self.assertIn(f"\\fB{o}\\fR", page, f"{program.name} {command}")

    @unittest.skipUnless(shutil.which("groff"), "groff is not installed")
    def test_pages_are_sound(self):
        for page in self.root.glob("share/man/man?/*"):
            done = run("groff", "-man", "-Tutf8", "-ww", "-z", page)
            self.assertEqual((done.returncode, done.stderr), (0, ""), page.name)

    def bash(self, *words):
        program = words[0]
        script = (f'source {self.root}/share/bash-completion/completions/{program}; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); '
                  f'_{program.replace("-", "_")}; echo "${{COMPREPLY[*]}}"')
        done = run("bash", "-c", script, "bash", *words)
        self.assertEqual(done.stderr, "")
        return done.stdout.split()

    def test_bash(self):
        self.assertEqual(self.bash("pipitd", "--backend", "c"), ["cpu", "cuda"])
        self.assertEqual(self.bash("pipitd", "--backend", "=", "r"), ["ref"])
        self.assertEqual(self.bash("pipitd", "p"), ["plan"])
        self.assertIn("--json", self.bash("pipitd", "plan", "--"))
        self.assertNotIn("--json", self.bash("pipitd", "--"))
        self.assertEqual(self.bash("pipit", "to"), ["tokenize"])
        self.assertEqual(self.bash("pipit", "ask", "--te"), ["--temp"])
        self.assertEqual(self.bash("pipit", "ask", "--seed", ""), [])
        self.assertIn("/etc/passwd", self.bash("pipit", "ask", "--config", "/etc/pass"))
        self.assertEqual(self.bash("pipit-convert", "--type", "f"), ["f32", "f16"])
        self.assertIn("--output", self.bash("pipit-convert", "--"))

    @unittest.skipUnless(shutil.which("zsh"), "zsh is not installed")
    def test_zsh(self):
        for file in self.root.glob("share/zsh/site-functions/_*"):
            self.assertEqual(run("zsh", "-n", file).stderr, "", file.name)


class Units(Installed):
    def test_exposure(self):
        if not shutil.which("systemd-analyze") or "--offline" not in run("systemd-analyze", "--help").stdout:
            self.skipTest("no systemd-analyze that can look at files (systemd 250)")
        for unit, limit in EXPOSURE.items():
            path = self.root / "lib/systemd/system" / unit
            done = run("systemd-analyze", "security", "--offline=true", "--no-pager", f"--threshold={limit}", path)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertNotIn("Unknown", done.stderr)

    def test_limits(self):
        """What ends a leak, a fork bomb and a crash loop; nothing but its own files is executable; no core, no swap."""
        for unit in EXPOSURE:
            text = (self.root / "lib/systemd/system" / unit).read_text()
            lines = dict(re.findall(r"^(\w+)=(.*)$", text, re.M))
            for name in ("MemoryMax", "TasksMax", "StartLimitBurst", "OnFailure", "AppArmorProfile", "ExecPaths"):
                self.assertTrue(lines.get(name), f"{unit}: {name}=")
            self.assertEqual((lines["MemorySwapMax"], lines["LimitCORE"], lines["NoExecPaths"].split()[0].lstrip("+")), ("0", "1", "/"), unit)
            self.assertNotEqual(lines["StartLimitIntervalSec"], "0", unit)
            self.assertNotIn("/bin/sh", re.sub(r"^ExecReload=\+.*", "", text, flags=re.M))
            self.assertTrue((self.root / "lib/systemd/system/pipit-gave-up@.service").is_file())

    def test_apparmor_profiles(self):
        """Every profile that a unit names is installed, knows where the programs lie, and compiles."""
        parser = shutil.which("apparmor_parser") or shutil.which("/sbin/apparmor_parser")
        for unit in EXPOSURE:
            name = re.search(r"^AppArmorProfile=-(.+)$", (self.root / "lib/systemd/system" / unit).read_text(), re.M)[1]
            path = self.conf.parent.parent / "apparmor.d" / name
            self.assertRegex(path.read_text(), rf"(?m)^profile {name} ")
            self.assertNotRegex(path.read_text(), r"@\w+dir@")
        if not parser:
            print("SKIP: no apparmor_parser, the profiles were not compiled", file=sys.stderr)
            self.skipTest("apparmor_parser is not installed")
        for path in (self.conf.parent.parent / "apparmor.d").iterdir():
            done = run(parser, "-Q", "-K", path)
            self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    if not (BUILD / "daemon/front/pipitd").exists() or not (BUILD / "daemon/gateway/pipit-gateway").exists():
        print("SKIP: pipitd or pipit-gateway was not built", file=sys.stderr)
        sys.exit(77)
    unittest.main(verbosity=2)
