#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/data/pre_vectors.txt: the words into which each rule of engine/text/tok_patterns.c cuts texts, by the
package `tokenizers` (Oniguruma) with the expressions of the models' tokenizer.json. One a line: NAME HEX LEN,LEN,...
with the bytes of each word.

    make_pre_vectors.py OUTPUT
    make_pre_vectors.py --check TOK_DUMP [TEXTS [SEED]]     random texts against tok_dump instead"""

import os
import pathlib
import random
import subprocess
import sys

try:
    from tokenizers import Regex, pre_tokenizers
except ImportError as e:
    print(f"SKIP: {e}; this check needs tokenizers from PyPI")
    sys.exit(77)

from tok_text import random_text

END = r"'s|'t|'re|'ve|'m|'ll|'d"
GPT2 = END + r"| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
BEFORE = r"[^\r\n\p{L}\p{N}]?"
SIGNS = r" ?[^\s\p{L}\p{N}]+"
LINES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"


def llama3(digits):
    return rf"(?i:{END})|{BEFORE}\p{{L}}+|{digits}|{SIGNS}[\r\n]*{LINES}"


def o200k(digits, tail, no=""):
    upper, lower = rf"[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}{no}]", rf"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}{no}]"
    slash = "" if no else "/"
    return rf"{BEFORE}{upper}*{lower}+{tail}|{BEFORE}{upper}+{lower}*{tail}|{digits}|{SIGNS}[\r\n{slash}]*{LINES}"


def deepseek3(end):
    return (r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"""
            + end + r"|\s+(?!\S)|\s+")


CASE = rf"(?i:{END})?"
KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
YOUTU = ("[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+"
         "|[\u3105-\u312f]+|" + KANA)
AFMOE = ("[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0e7f\u0e80-\u0eff"
         "\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+")
RULES = {
    "gpt-2": [GPT2],
    "smollm": [r"\p{N}", GPT2],
    "llama-bpe": [llama3(r"\p{N}{1,3}")],
    "qwen2": [llama3(r"\p{N}")],
    "qwen35": [rf"(?i:{END})|{BEFORE}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*{LINES}"],
    "ufakzeka": [rf"{BEFORE}\p{{L}}+|\p{{N}}|{SIGNS}[\r\n]*{LINES}"],
    "laguna": [r"[^\n]+|[\n]+", llama3(r"\p{N}")],
    "minicpm5": [r"\p{N}{1,3}", llama3(r"\p{N}+")],
    "seed-coder": [rf"(?i:{END})|{BEFORE}\p{{L}}+|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+{LINES}"],
    "bailingmoe": [r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"],
    "exaone-moe": [rf"(?i:{END})|{BEFORE}(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}|{SIGNS}[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"],
    "jais-2": [rf"(?i:{END})|{BEFORE}\p{{L}}+|\p{{N}}{{1,3}}|{SIGNS}[\r\n]*|\s*[\r\n]+|"
               + "".join(rf"\s{{{n}}}(?!\S)|" for n in ("512", "256", "128", "64", "32", "16", "8", "4", "1,2")) + r"\s{1}"],
    "tekken": [o200k(r"\p{N}", "")],
    "gpt-4o": [o200k(r"\p{N}{1,3}", CASE)],
    "tiny_aya": [r"\d{1,3}(?=(?:\d{3})*\b)", o200k(r"\p{N}{1,3}", CASE)],
    "youtu": [YOUTU, o200k(r"\p{N}", CASE)],
    "kimi-k2": [r"[\p{Han}]+|" + o200k(r"\p{N}{1,3}", CASE, r"&&[^\p{Han}]")],
    "afmoe": [r"\p{Nd}{1,3}(?=(?:\p{Nd}{3})*(?!\p{Nd}))", AFMOE, deepseek3(r"[\r\n]*|\s*[\r\n]+")],
    "superbpe": [r"\p{N}+", r"(?=(\d{3})+(?!\d))"],
    "deepseek-coder": [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", r"\p{N}"],
    "deepseek-v3": [r"\p{N}{1,3}", KANA, deepseek3(r"[\r\n]*|\s*[\r\n]+")],
    "spark2_5": [r"\p{N}{1,3}", KANA, deepseek3(r"|[\r\n]"), r"\p{N}"],
    "falcon": [r"[\p{P}\$\+<=>\^~\|`]+", GPT2, r"[0-9][0-9][0-9]"],
    "bloom": [BLOOM],
    "viking": [BLOOM, r"\p{N}"],
    "chameleon": [r"<sentinel:[0-9]+>", r"(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", r"([\t\n]|    |  )", r"\p{N}",
                  r"[\p{P}!-/:-@\[-`{-~]", GPT2],
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"],
}
FIXED = ["I'LL we'Ve don't HelloWORLD parseHTTPRequest Éa ÉCOLE", "1234567 12345 89abc 1234567x 12½345 ٣٤٥٦",
         "a\u2029 \u3000b \n \n\n  c\r\n\t\td", "漢字かなカナ한국어ㄱㄴ 々々", "!word ?!x.y `a` <a> (b)\n\n/* c */\n/",
         "é\u0301\u0302o नमस्ते สวัสดี", "IMGIMGABCZ <sentinel:12>        x", "\u00a0\u200b\u180e end   ", "。，、abc…def. ghi",
         " " * 70 + "x", "1" * 40]


def rule(name):
    parts = [pre_tokenizers.Split(Regex(p), "isolated") for p in RULES[name]]
    return pre_tokenizers.Sequence(parts)


def words(r, text):
    return [len(w.encode()) for w, _ in r.pre_tokenize_str(text)]


def check(program, n, seed):
    bad = 0
    for name in RULES:
        rng = random.Random(seed)
        texts = FIXED + [random_text(rng) for _ in range(n)]
        got = subprocess.run([program, "words", name], input="".join(t.encode().hex() + "\n" for t in texts),
                             stdout=subprocess.PIPE, text=True, check=True).stdout.split("\n")
        r = rule(name)
        wrong = [(t, words(r, t), g) for t, g in zip(texts, got) if ",".join(map(str, words(r, t))) != g]
        print(f"{name:16} {len(texts)} texts, {len(wrong)} differ")
        for t, w, g in wrong[:2]:
            print(f"  {t!r}\n    wanted {','.join(map(str, w))}\n    got    {g}")
        bad += len(wrong)
    return 1 if bad else 0


def make(output):
    lines = []
    for name in RULES:
        rng = random.Random(name)
        r = rule(name)
        for text in FIXED + [random_text(rng)[:60] for _ in range(12)]:
            lines.append(f"{name} {text.encode().hex()} {','.join(map(str, words(r, text)))}\n")
    pathlib.Path(output).write_text("".join(lines))
    print(f"{len(lines)} texts")


if sys.argv[1] == "--check":
    seed = sys.argv[4] if len(sys.argv) > 4 else os.environ.get("PIPIT_PHASE", "1")
    sys.exit(check(sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 100, seed))
make(sys.argv[1])
