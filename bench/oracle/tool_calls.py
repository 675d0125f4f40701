#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Answers with tools beside llama.cpp: the same model file, the same conversations, temperature 0.

    tool_calls.py --model FILE.gguf --llama-server PATH --build build [--bare] [--threads 2] [--show]

pipitd and llama-server --jinja each render the model's own template and read the answer with their own parser. A line a
question: whether the calls agree (names and arguments, as JSON), whether the words agree, and both where they do not. The
last three of the 20 conversations go on from a result.

--bare puts another template before both: ChatML, where a call is a JSON object without markers. Qwen2.5-Coder writes that, and
hardly ever the <tool_call> that its own template asks for. Needs python3-cffi."""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request


def tool(name, about, **parameters):
    properties = {k: {"type": v} if isinstance(v, str) else v for k, v in parameters.items()}
    return {"type": "function", "function": {"name": name, "description": about, "parameters": {
        "type": "object", "properties": properties, "required": list(properties)}}}


TOOLS = [
    tool("get_weather", "Current weather in a city", city="string"),
    tool("get_time", "Current time in a time zone", zone={"type": "string", "description": "such as Europe/Oslo"}),
    tool("add", "Adds two numbers", a="number", b="number"),
    tool("search", "Searches the web", query="string", limit="integer"),
    tool("send_mail", "Sends a mail", to={"type": "array", "items": {"type": "string"}}, subject="string", body="string"),
    tool("read_file", "Reads a file", path="string"),
    tool("set_light", "Switches a lamp", room="string", on="boolean"),
]
BARE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bare_calls.jinja")
QUESTIONS = [
    "What is the weather in Oslo?", "What time is it in Tokyo?", "Add 17 and 25.5 with the tool.",
    "Search the web for 'block-sparse attention', 3 results.", "Turn on the light in the kitchen.", "Switch off the lamp in the hall.",
    "Read the file /etc/hostname.", "Send a mail to ann@example.org and bo@example.org: subject Lunch, body At noon?",
    "What is the weather in Paris and in Rome?", "Tell me the weather in S\u00e3o Paulo.", "What is 2 + 2? Use add.",
    "Show me what is in notes.txt.", "Search for \"the \\\"best\\\" caf\u00e9 in K\u00f6ln\", 5 results.", "Say hello.",
    "Write a haiku about snow.", "What is the capital of France?", "Is it dark in New York now? Check the time.",
]
RESULTS = [
    ("What is the weather in Oslo?", "get_weather", {"city": "Oslo"}, '{"degrees": -3, "sky": "snow"}'),
    ("Add 17 and 25.5 with the tool.", "add", {"a": 17, "b": 25.5}, "42.5"),
    ("Read the file /etc/hostname.", "read_file", {"path": "/etc/hostname"}, "<tool_call>{\"name\": \"add\"}</tool_call>"),
]


def conversations():
    for q in QUESTIONS:
        yield [{"role": "user", "content": q}]
    for q, name, arguments, result in RESULTS:
        call = {"id": "call00001", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        yield [{"role": "user", "content": q}, {"role": "assistant", "content": "", "tool_calls": [call]},
               {"role": "tool", "name": name, "tool_call_id": "call00001", "content": result}]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_for(what, process, seconds=120):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if process.poll() is not None:
            sys.exit(f"{process.args[0]} ended with {process.returncode}")
        try:
            return what()
        except OSError:
            time.sleep(0.2)
    sys.exit(f"{process.args[0]} does not get ready")


def loads(text):
    """Arguments; those of an answer that was cut are no JSON with llama.cpp, and stay text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


class Llama:
    def __init__(self, a, tokens):
        self.port, self.tokens = free_port(), tokens
        self.process = subprocess.Popen([a.llama_server, "-m", a.model, "--jinja", "--port", str(self.port), "-t", str(a.threads), "-c", "4096",
                                         "-np", "1", "--no-webui",
                                         *(["--chat-template-file", BARE] if a.bare else [])], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(lambda: urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5).read(), self.process)

    def ask(self, messages):
        body = {"messages": messages, "tools": TOOLS, "temperature": 0, "max_tokens": self.tokens, "parallel_tool_calls": True}
        r = urllib.request.Request(f"http://127.0.0.1:{self.port}/v1/chat/completions", json.dumps(body).encode(),
                                   {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(r, timeout=300) as f:
                m = json.load(f)["choices"][0]["message"]
        except urllib.error.HTTPError as e:  # an answer that its parser does not take
            return f"HTTP {e.code}: {json.load(e).get('error', {}).get('message', '')}", []
        calls = [(c["function"]["name"], loads(c["function"]["arguments"])) for c in m.get("tool_calls") or []]
        return m.get("content") or "", calls

    def close(self):
        self.process.terminate()
        self.process.wait()


class Pipit:
    def __init__(self, a, tokens):
        self.build, self.folder, self.tokens = a.build, tempfile.mkdtemp(prefix="tc-"), tokens
        self.process = subprocess.Popen([os.path.join(a.build, "daemon/front/pipitd"), "--model", a.model, "--runtime-dir", self.folder,
                                         "--gateway", "no", "--threads", str(a.threads), "--ctx", "4096",
                                         *(["--template", BARE, "--tool-format", "llama3"] if a.bare else [])], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        here = os.path.dirname(os.path.abspath(__file__))
        sys.path.insert(0, os.path.join(here, "../../client/python"))
        import ctypes
        ctypes.CDLL(os.path.join(a.build, "client/libpipit.so.0"))
        import pipit

        def connect():
            try:
                return pipit.Client(runtime_dir=self.folder)
            except pipit.PipitError as e:
                raise OSError(str(e)) from e
        self.client = wait_for(connect, self.process)

    def ask(self, messages):
        a = self.client.generate(messages, tools=TOOLS, temperature=0, max_tokens=self.tokens)
        return a.text, [(c.name, c.arguments) for c in a.calls]

    def close(self):
        self.client.close()
        self.process.terminate()
        self.process.wait()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--model", required=True)
    p.add_argument("--llama-server", required=True)
    p.add_argument("--build", default="build")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--tokens", type=int, default=128)
    p.add_argument("--bare", action="store_true", help="a template whose calls are JSON without markers")
    p.add_argument("--show", action="store_true", help="all answers, not only those that differ")
    a = p.parse_args()
    talks = list(conversations())
    answers = []
    for side in (Pipit, Llama):
        s = side(a, a.tokens)
        try:
            answers.append([])
            for t in talks:
                answers[-1].append(s.ask(t))
                print(".", end="", file=sys.stderr, flush=True)
        finally:
            s.close()
    same_calls = same_text = n_calls = 0
    for talk, ours, theirs in zip(talks, *answers):
        calls, text = ours[1] == theirs[1], ours[0].strip() == theirs[0].strip()
        same_calls, same_text, n_calls = same_calls + calls, same_text + text, n_calls + bool(ours[1] or theirs[1])
        print(f"{'calls agree' if calls else 'CALLS DIFFER'}, {'words agree' if text else 'words differ'}: {talk[0]['content']}"
              f"{' (+ result)' if len(talk) > 1 else ''}")
        if a.show or not (calls and text):
            print("    pipit    ", json.dumps(ours, ensure_ascii=False))
            print("    llama.cpp", json.dumps(theirs, ensure_ascii=False))
    print(f"{len(talks)} answers: calls agree in {same_calls}, words in {same_text}; {n_calls} have calls on either side")


if __name__ == "__main__":
    main()
