#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The abuses of tests/soak/abuse.py in a short form, each with the figure that is asked of it, where no other test has one:
test_users.py has texts, slow readers of logits, RESUME, subordinate ids, poisons, quotas and forty commands at once;
test_sessions.py two daemons of one folder, test_supervised.py lanes that are all taken under socket activation,
unit/test_engine.c cancels in turn."""
import argparse
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../soak"))
import abuse  # noqa: E402
from daemon import HOOKED, SLOW, STORIES  # noqa: E402


class Abuse(unittest.TestCase):
    def measure(self, name, seconds, **more):
        args = argparse.Namespace(model=STORIES, backend="cpu", threads=1, seconds=seconds * SLOW, seed=1, slow_model=None)
        vars(args).update(more)
        passed, said, figures = abuse.CASES[name][0](args)
        print(f"{name}: {said}", file=sys.stderr)
        if passed is None:
            self.skipTest(said)
        self.assertTrue(passed, (said, figures))

    def measure_slowly(self, name, seconds, **more):
        """With steps of some milliseconds."""
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o755)
            slow = os.path.join(folder, "slow.gguf")
            abuse.make_model(slow, layers=8, hidden=512, ffn=2048, heads=8)
            self.measure(name, seconds, **{k: v or slow for k, v in more.items()})

    def test_full_journal(self):
        self.measure("journal-full", 3)

    @unittest.skipUnless(os.getuid() == 0, "only root may be another user")
    def test_spy(self):
        self.measure("spy", 0, rounds=1)

    def test_long_and_short(self):
        self.measure_slowly("long-and-short", 3, model=None, gaps=10)


if __name__ == "__main__":
    if not os.path.exists(HOOKED):
        print("SKIP: pipitd was not built", file=sys.stderr)
        sys.exit(77)
    unittest.main(verbosity=2, warnings="ignore")
