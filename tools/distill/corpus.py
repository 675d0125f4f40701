# SPDX-License-Identifier: Apache-2.0
"""Text from Debian packages: what is fetched, and how each kind of file becomes plain paragraphs.

Packages are downloaded with apt-get and unpacked beside the data; nothing is installed. A source is one package, a
pattern of its files, a reader, and a cap in characters, so that no one book or manual fills the mixture."""

import bz2
import gzip
import html.parser
import pathlib
import re
import struct
import subprocess
import zlib

MB = 1 << 20


class _Text(html.parser.HTMLParser):
    """Paragraphs of an HTML page: block elements end one; scripts, styles and navigation are left out."""

    BLOCK = {"p", "div", "li", "h1", "h2", "h3", "h4", "h5", "td", "dt", "dd", "pre", "blockquote", "tr", "br"}
    SKIP = {"script", "style", "nav", "head", "footer"}

    def __init__(self):
        super().__init__()
        self.parts, self.depth, self.pre = [], 0, 0

    def handle_starttag(self, tag, attrs):
        self.depth += tag in self.SKIP
        self.pre += tag == "pre"
        if tag in self.BLOCK:
            self.parts.append("\n\n" if tag != "br" else "\n")

    def handle_endtag(self, tag):
        self.depth -= tag in self.SKIP and self.depth > 0
        self.pre -= tag == "pre" and self.pre > 0
        if tag in self.BLOCK:
            self.parts.append("\n\n")

    def handle_data(self, data):
        if not self.depth:
            self.parts.append(data if self.pre else re.sub(r"\s+", " ", data))


def html_text(raw):
    p = _Text()
    p.feed(raw.decode("utf-8", "replace"))
    return ["".join(p.parts)]


def plain(raw):
    return [raw.decode("utf-8", "replace")]


def fortunes(raw):
    return plain(raw)[0].split("\n%\n")


def dictionary(raw):
    """dictd: entries are lines that begin at the margin, their text is indented."""
    return re.split(r"\n(?=\S)", plain(raw)[0])


def man(raw):
    """A page's own text without its macros; good enough for prose sections."""
    out = []
    for line in plain(raw)[0].split("\n"):
        if line.startswith((".\\\"", "'")):
            continue
        if line.startswith((".SH", ".SS")):
            out.append("\n\n" + line[4:].strip().strip('"') + "\n")
        elif line.startswith((".PP", ".P", ".TP", ".IP", ".LP")):
            out.append("\n\n")
        elif line.startswith((".B ", ".I ", ".BR ", ".IR ", ".BI ", ".RB ")):
            out.append(line.split(" ", 1)[1].replace('"', ""))
        elif not line.startswith("."):
            out.append(line)
    text = re.sub(r"\\f[A-Z]|\\f\(..|\\&|\\,|\\/", "", "\n".join(out))
    return [text.replace("\\-", "-").replace("\\(aq", "'").replace("\\e", "\\").replace("\\(bu", "*")]


def wordnet(raw):
    """data.POS: words, then a gloss after a bar."""
    out = []
    for line in plain(raw)[0].split("\n"):
        if not line.startswith("  ") and " | " in line:
            head, gloss = line.split(" | ", 1)
            out.append(head.split()[4].replace("_", " ") + ": " + gloss.strip())
    return ["\n".join(out[i:i + 24]) for i in range(0, len(out), 24)]


def r_strings(raw):
    """R's lazy-load data base: blocks of a big-endian length, zlib data; in them XDR strings. Lines of a book come in
    order; a paragraph ends at an empty line."""
    text, at = [], 0
    while at + 4 <= len(raw):
        block = _r_block(raw, at)
        if block is None:
            at += 1
            continue
        data, used = block
        at += used
        lines = list(_xdr_strings(data))
        if sum(map(len, lines)) > 10000:
            text.append("\n".join(lines))
    return text


def _r_block(raw, at):
    try:
        z = zlib.decompressobj()
        out = z.decompress(raw[at + 4:])
        return out, 4 + len(raw) - at - 4 - len(z.unused_data)
    except zlib.error:
        return None


def _xdr_strings(data):
    at = 0
    while (at := data.find(b"\x00\x04\x00\x09", at)) >= 0:
        n = struct.unpack(">i", data[at + 4:at + 8])[0]
        if 0 <= n < 4096:
            yield data[at + 8:at + 8 + n].decode("utf-8", "replace")
            at += 8 + n
        else:
            at += 4


# package, files, reader, cap in characters, passes in one epoch (prose more than manuals), what it is
SOURCES = [
    ("r-cran-janeaustenr", "**/data/Rdata.rdb", r_strings, 5 * MB, 4, "Jane Austen's novels, public domain"),
    ("anarchism", "**/html/sec*.html", html_text, 4 * MB, 3, "essays, GFDL or GPL"),
    ("fortunes", "**/games/fortunes/*", fortunes, 3 * MB, 3, "quotations and jokes"),
    ("fortunes-min", "**/games/fortunes/*", fortunes, 1 * MB, 1, "quotations and riddles"),
    ("dict-devil", "**/*.dict.dz", dictionary, 1 * MB, 2, "Ambrose Bierce, public domain"),
    ("dict-jargon", "**/*.dict.dz", dictionary, 2 * MB, 1, "hackers' words, public domain"),
    ("dict-foldoc", "**/*.dict.dz", dictionary, 4 * MB, 1, "dictionary of computing, GFDL"),
    ("dict-gcide", "**/*.dict.dz", dictionary, 5 * MB, 1, "Webster 1913 and others, GPL"),
    ("wordnet-base", "**/wordnet/data.*", wordnet, 3 * MB, 1, "WordNet 3.0 glosses"),
    ("debian-handbook", "**/en-US/*.html", html_text, 2 * MB, 2, "CC BY-SA and GPL"),
    ("python3.11-doc", "**/html/**/*.html", html_text, 6 * MB, 1, "PSF licence"),
    ("gimp-help-en", "**/help/en/*.html", html_text, 3 * MB, 1, "GFDL"),
    ("libreoffice-help-en-us", "**/en-US/text/**/*.html", html_text, 3 * MB, 1, "MPL"),
    ("developers-reference", "**/*.txt", plain, 1 * MB, 1, "GPL"),
    ("manpages", "**/man*/*.gz", man, 2 * MB, 1, "various free licences"),
    ("manpages-dev", "**/man*/*.gz", man, 3 * MB, 1, "various free licences"),
    ("linux-doc-6.1", "**/Documentation/**/*.rst.gz", plain, 5 * MB, 1, "GPL"),
    ("miscfiles", "**/us-*.gz", plain, 1 * MB, 1, "public domain"),
]


def fetch(package, folder):
    """The unpacked package, or None when apt has none of the name."""
    into = folder / "packages" / package
    if into.exists():
        return into
    debs = folder / "packages" / "archives"
    debs.mkdir(parents=True, exist_ok=True)
    r = subprocess.run(["apt-get", "download", "-qq", package], cwd=debs, capture_output=True, text=True)
    found = sorted(debs.glob(f"{package}_*.deb"))
    if r.returncode or not found:
        return None
    subprocess.run(["dpkg", "-x", str(found[-1]), str(into)], check=True)
    return into


def files(root, pattern):
    for path in sorted(root.glob(pattern)):
        if path.is_file() and not path.is_symlink() and path.suffix not in (".dat", ".u8") \
                and "translations" not in path.parts:
            yield path


def read_file(path):
    raw = path.read_bytes()
    if path.suffix in (".gz", ".dz"):
        return gzip.decompress(raw)
    return bz2.decompress(raw) if path.suffix == ".bz2" else raw


def documents(root, pattern, reader, cap):
    """Texts of one source until the cap, spread over its files."""
    paths = list(files(root, pattern))
    left = cap
    for i, path in enumerate(paths):
        share = max(left // (len(paths) - i), 20000) if left > 0 else 0
        for text in reader(read_file(path)):
            text = re.sub(r"[ \t]+\n", "\n", text.replace("\r", ""))
            text = re.sub(r"\n{3,}", "\n\n", text).strip()
            text = re.sub(r"[ \t]{3,}", "  ", text)
            if len(text) >= 40 and share > 0:
                text = text[:share]
                share -= len(text)
                left -= len(text)
                yield text
