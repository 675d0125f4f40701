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


# What no answer of the unit test has: escapes of Python's strings, and JSON that breaks off inside.
MORE = {
    "lfm2": [r"""<|tool_call_start|>[f(a='x\x41\u00e9\'\/\q\n"', b=True, c=None, d=[1, 'a'], e={'k': 2})]<|tool_call_end|>""",
             r"""<|tool_call_start|>[f(a='\xZ1')]<|tool_call_end|>""", r"""<|tool_call_start|>[f(a='\u00')]<|tool_call_end|>""",
             "<|tool_call_start|>[f(a='\\", "<|tool_call_start|>[f(a='\x01\x1f')]<|tool_call_end|>", "<|tool_call_start|>[f(a=[1 2])]<|tool_call_end|>",
             "<|tool_call_start|>[f(a={'k' 2})]<|tool_call_end|>", "<|tool_call_start|>[f(a)]<|tool_call_end|>", "<|tool_call_start|>f(a=1)<|tool_call_end|>"],
    "hermes": [r"""<tool_call>{"name": "f", "arguments": {"a": "\uZZZZ"}}</tool_call>""", r"""<tool_call>{"name": "f", "arguments": {"a": "\q"}}</tool_call>""",
               '<tool_call>{"name": "f", "arguments": {"a": false, "b": [1, ]}}</tool_call>', '<tool_call>{"name": {"name": "f"}, "arguments": "{}"}</tool_call>',
               "<tool_call>{'name': 'f', 'arguments': {'a': True, 'b': None}}</tool_call>", '<tool_call>{"name": "f", "arguments": {"a" 1}}</tool_call>',
               '<tool_call>{"type": "function", "function": {"name": "f", "arguments": {"a": nul}}}</tool_call>', '<tool_call>{"name": "f", "arguments": {"a": "\x01"}}</tool_call>'],
    "qwen-xml": ["<tool_call><function=f><parameter=a>True</parameter><parameter=b>[1, None]</parameter></function></tool_call>", "<tool_call><function=f><parameter=a>"],
    "gemma4": ['<|tool_call>call:f{a:<|"|>x', "<|tool_call>call:f{a:{b:[1,2}}<tool_call|>", "<|tool_call>call:f{a 1}<tool_call|>", "<|tool_call>f{}<tool_call|>",
               '<|tool_call>call:f{a:[<|"|>x<|"|>, tru]}<tool_call|>', "<|tool_call>call:f{a:}<tool_call|>", "<|tool_call>call:f{}x<tool_call|>"],
    "harmony": ["<|channel|>commentary to=functions.f<|message|>{", "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\" 1}<|call|>",
                "<|channel|>final<|message|>x<|call|><|channel|>", "<|start|>assistant to=f<|channel|>commentary<|message|>[1]<|call|>"],
    "llama3": ['<|python_tag|>{"name": "f", "parameters": {"a": 1}', '{"name": "f"', " " * 40 + '{"name": "f", "parameters": {}}', '<|python_tag|>f(a=1'],
}


def more(out):
    for name, texts in MORE.items():
        for i, text in enumerate(texts):
            for flags in (4, 5):
                (out / f"{name}_more_{i}_{flags}").write_bytes(bytes([FORMATS.index(name), flags, 29 * i % 256]) + text.encode())


def main():
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    for i, (form, prompt, said) in enumerate(rows()):
        for flags, what in ((4, "text"), (5, "tokens")):
            head = bytes([form + 16 * prompt, flags, 37 * i % 256])
            (out / f"{FORMATS[form]}_{i}_{what}").write_bytes(head + said)
        cut = said[:len(said) * 2 // 3]
        (out / f"{FORMATS[form]}_{i}_cut").write_bytes(bytes([form + 16 * prompt, 0, i]) + cut)
    more(out)
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
