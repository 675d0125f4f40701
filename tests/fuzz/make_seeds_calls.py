#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Seeds and dictionary for fuzz_calls: the answers of tests/unit/test_calls.c, with markers as text
and as tokens, whole and cut. make_seeds_calls.py SEEDS_DIR DICT"""

import ast
import pathlib
import re
import sys

FORMATS = ["hermes", "qwen-xml", "llama3", "mistral", "harmony", "gemma4", "lfm2", "granite", "none"]
PROMPTS = {"": 0, "<|im_start|>assistant\\n<think>\\n": 1, "START": 2}
SOURCE = pathlib.Path(__file__).parent.parent / "unit" / "test_calls.c"


def rows():
    text = SOURCE.read_text(encoding="utf-8")
    table = text[text.index("static const struct answer answers[]"):text.index("enum { N_ANSWERS")]
    call = re.search(r"#define CALL_JSON (.*)", text).group(1)
    table = table.replace("CALL_JSON", call)
    for row in re.findall(r'\{"([a-z0-9-]+)", ("[^"]*"|START),\s*((?:"(?:[^"\\]|\\.)*"|START|\s)+),',
                          table):
        name, prompt, parts = row
        parts = parts.replace("START", '"<|start|>assistant"')
        said = "".join(ast.literal_eval(p) for p in re.findall(r'"(?:[^"\\]|\\.)*"', parts))
        yield FORMATS.index(name), PROMPTS.get(prompt.strip('"'), 0), said.encode("latin-1")


def main():
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    for i, (form, prompt, said) in enumerate(rows()):
        for flags, what in ((4, "text"), (5, "tokens")):
            head = bytes([form + 16 * prompt, flags, 37 * i % 256])
            (out / f"{FORMATS[form]}_{i}_{what}").write_bytes(head + said)
        cut = said[:len(said) * 2 // 3]
        (out / f"{FORMATS[form]}_{i}_cut").write_bytes(bytes([form + 16 * prompt, 0, i]) + cut)
    harness = (SOURCE.parent.parent / "fuzz" / "fuzz_calls.c").read_text(encoding="utf-8")
    table = harness[harness.index("tokens[] ="):harness.index("static void require")]
    words = [ast.literal_eval(w) for w in re.findall(r'"(?:[^"\\]|\\.)*"', table)]
    words += ['<function=', '</function>', '<parameter=', '</parameter>', '{"name": "f", ',
              '"arguments": {', '"parameters": {', '"function": ', "call:f{", "f(a=", "True",
              "None", "<response>", "</response>", "thought\n", " to=functions.f", "analysis",
              "commentary", "final", "[CALL_ID]", "\\u00e9", "<|constrain|>", "; "]
    lines = ["# SPDX-License-Identifier: Apache-2.0"]
    for w in words:
        safe = "".join(c if c.isprintable() and c not in '"\\' else f"\\x{ord(c):02x}" for c in w)
        lines.append(f'"{safe}"')
    pathlib.Path(sys.argv[2]).write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
