#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The template engine against Jinja2 on the chat templates that real models come with.

    check_jinja_templates.py JINJA_DUMP [DIR]

DIR holds *.jinja files. Without it they come from the source package of llama-cpp-python on PyPI, which is fetched
once into the cache ($XDG_CACHE_HOME/pipit). Byte for byte the same text on every conversation of jinja_oracle.py, an
error where Jinja2 has one, and every byte of a user's or tool's marked so. With PIPIT_PHASE one case of six.
Exit 77 without Jinja2 or the package."""

import json
import os
import pathlib
import subprocess
import sys
import tarfile

try:
    import jinja2  # noqa: F401
    import jinja_oracle as oracle
except ImportError as e:
    print(f"SKIP: {e}; this check needs jinja2 from PyPI")
    sys.exit(77)

PACKAGE, VERSION, N_TEMPLATES = "llama-cpp-python", "0.3.36", 70


def fetch():
    """The folder with the templates, or None."""
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "pipit"
    folder = cache / f"templates-{VERSION}"
    if folder.is_dir():
        return folder
    name = f"llama_cpp_python-{VERSION}.tar.gz"
    cache.mkdir(parents=True, exist_ok=True)
    if not (cache / name).is_file():
        # pip would build the package to learn its name; its index page has the address.
        from pip._internal.models.index import PyPI
        index = subprocess.run([sys.executable, "-m", "pip", "config", "get", "global.index-url"], text=True,
                               capture_output=True).stdout.strip() or PyPI.simple_url
        import re
        import urllib.parse
        import urllib.request
        page = f"{index.rstrip('/')}/{PACKAGE}/"
        try:
            html = urllib.request.urlopen(page, timeout=30).read().decode()
            link = re.search(r'href="([^"]*' + re.escape(name) + r'[^"]*)"', html).group(1)
            data = urllib.request.urlopen(urllib.parse.urljoin(page, link), timeout=300).read()
        except Exception as e:
            print(f"SKIP: {PACKAGE} {VERSION} cannot be fetched: {e}")
            return None
        (cache / name).write_bytes(data)
    part = folder.with_suffix(".part")
    part.mkdir(exist_ok=True)
    with tarfile.open(cache / name) as tar:
        for m in tar:
            if "/models/templates/" in m.name and m.name.endswith(".jinja"):
                (part / pathlib.Path(m.name).name).write_bytes(tar.extractfile(m).read())
    (cache / name).unlink()
    part.rename(folder)
    return folder


def marks_hold(got):
    """Every byte of a character that only users write is in a range of users."""
    text, user = got["text"].encode(), bytearray(len(got["text"].encode()))
    for a, b in got["user"]:
        user[a:b] = b"\1" * (b - a)
    for c in oracle.GREEK:
        at = text.find(c.encode())
        while at >= 0:
            if user[at:at + 2] != b"\1\1":
                return False
            at = text.find(c.encode(), at + 2)
    return True


def main():
    folder = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else fetch()
    if not folder:
        return 77
    env, talks = oracle.environment(), oracle.conversations()
    sources = {p.stem: p.read_text() for p in sorted(folder.glob("*.jinja"))}
    cases = [(t, c) for t in sources for c in talks]
    if phase := os.environ.get("PIPIT_PHASE"):
        cases = [x for i, x in enumerate(cases) if (i + i // 6 + int(phase)) % 6 == 0]
    lines = "".join(json.dumps({"template": sources[t], "vars": talks[c]}) + "\n" for t, c in cases)
    out = subprocess.run([sys.argv[1], str(oracle.NOW)], input=lines, stdout=subprocess.PIPE, text=True, check=True,
                         encoding="utf-8").stdout.split("\n")
    bad = rendered = 0
    for (t, c), line in zip(cases, out):
        want, why = oracle.render(env, sources[t], talks[c])
        got = json.loads(line)
        rendered += want is not None
        if got.get("text") == want and (want is None or marks_hold(got)):
            continue
        bad += 1
        if bad <= int(os.environ.get("SHOW", "5")):
            print(f"{t}, {c}:")
            if want is None or "text" not in got:
                print(f"  wanted {why or 'a text'}\n  got    {got.get('error', 'a text')}")
            elif got["text"] == want:
                print("  a byte of a user has the template's mark")
            else:
                i = next((k for k in range(min(len(want), len(got["text"]))) if want[k] != got["text"][k]), None)
                i = min(len(want), len(got["text"])) if i is None else i
                print(f"  from {i}\n  wanted {want[max(0, i - 40):i + 60]!r}\n  got    {got['text'][max(0, i - 40):i + 60]!r}")
    print(f"{len(sources)} templates, {len(talks)} conversations, {len(cases)} cases, {rendered} texts and {len(cases) - rendered} errors: "
          f"{bad} differ")
    return 1 if bad or len(sources) < (1 if len(sys.argv) > 2 else N_TEMPLATES) else 0


if __name__ == "__main__":
    sys.exit(main())
