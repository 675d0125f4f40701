#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tools and reasoning from request to answer: a model that says what is written here, through the lane, Python and
ZeroMQ, across a crash of the engine, and cut.

PIPIT_BUILD is the build folder."""
import ctypes
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

from daemon import BUILD, SLOW, Daemon, wait_until
from lane import (CHAT, DONE, ERROR, GENERATE, T_ARGUMENTS, T_CALL, T_CALL_ID, T_CONTENT, T_NAME, T_PROMPT, T_REASONING, T_ROLE,
                  T_TOOLS, TEXT, TOKEN, item, order, sampling)
from scripted_model import CONTROL, NORMAL, USER, write

PARTS = 1 << 8
TOOLS = [{"type": "function", "function": {"name": "get_time", "description": "The time in a city", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]
LONG = "Å" * 150  # 300 bytes: more than a record's
CHAINS = [
    [("<|ask|>", CONTROL), ("<think>", USER), ("\nHm.", NORMAL), (" A clock?\n", NORMAL), ("</think>", USER), ("\n\nI look.", NORMAL),
     ("<tool_call>", USER), ('\n{"name": "get_time", ', NORMAL), ('"arguments": {"city": "' + LONG, NORMAL), ('"}}\n', NORMAL),
     ("</tool_call>", USER), ("<|im_end|>", CONTROL)],
    [("<|said|>", CONTROL), ("It is late.", NORMAL), ("<|im_end|>", CONTROL)],
    [("<|quote|>", CONTROL), ("Write <tool", NORMAL), ("_call> and ", NORMAL), ("{}.", NORMAL), ("<|im_end|>", CONTROL)],
]
# Its bytes in the prompt are told by how many tokens it has.
TEMPLATE = ("{% if tools %}<tool_call>{{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.role }}:{{ m.content }}"
            "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}{% endif %}"
            "{% for c in m.tool_calls or [] %}{{ c.id }}{{ c.function.name }}{{ c.function.arguments.city }}{% endfor %}"
            "{% if m.role == 'tool' %}{{ m.name }}{{ m.tool_call_id }}{% endif %}{% endfor %}"
            "{% if messages[-1].role == 'tool' %}<|said|>{% elif 'quote' in messages[-1].content %}<|quote|>{% else %}<|ask|>"
            "{% endif %}")


def user(text):
    return item(T_ROLE, "user") + item(T_CONTENT, text)


def parts(events):
    """[(part, text)], neighbours joined, with the number of each call."""
    names, out = ("text", "reasoning", "name", "arguments"), []
    for e in events:
        if e.type in (TOKEN, TEXT) and e.text:
            part = names[e.flags >> 8 & 3]
            key = (part, e.n_alts) if part in ("name", "arguments") else (part,)
            if out and out[-1][0] == key and part != "name":
                out[-1][1] += e.text.decode()
            else:
                out.append([key, e.text.decode()])
    return [(*key, text) for key, text in out]


WHOLE = [("reasoning", "Hm. A clock?"), ("text", "I look."), ("name", 0, "get_time"), ("arguments", 0, json.dumps({"city": LONG}, ensure_ascii=False))]


class Tools(unittest.TestCase):
    hooks = False

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="pt-")
        cls.model = os.path.join(cls.folder, "scripted.gguf")
        write(cls.model, CHAINS, TEMPLATE)
        gateway = os.path.exists(os.path.join(BUILD, "daemon/gateway/pipit-gateway"))
        cls.daemon = Daemon(model=cls.model, gateway="yes" if gateway and not cls.hooks else "no", hooks=cls.hooks)
        cls.daemon.ready().close()

    @classmethod
    def tearDownClass(cls):
        code = cls.daemon.stop()
        shutil.rmtree(cls.folder)
        assert code == 0, (code, cls.daemon.last_text)

    def setUp(self):
        self.lane = self.daemon.lane()
        self.addCleanup(self.lane.close)

    def ask(self, items, kind=CHAT, n=40, flags=0):
        return list(self.lane.events(self.lane.request(items + sampling(max_tokens=n, flags=flags), kind=kind)))


class Lane(Tools):
    def test_a_call(self):
        events = self.ask(item(T_TOOLS, json.dumps(TOOLS)) + user("What time is it?"))
        done = events[-1]
        self.assertEqual((done.type, done.reason, done.n_calls, done.broken), (DONE, "tool_calls", 1, 0), events)
        self.assertEqual(parts(events), WHOLE)
        self.assertEqual([e.index for e in events if e.type == TOKEN], list(range(11)))

    def test_a_result(self):
        """What belongs to messages reaches the template: each byte is a token here."""
        before = item(T_ROLE, "assistant") + item(T_CONTENT, "")
        call = item(T_CALL, "abc") + item(T_NAME, "get_time") + item(T_ARGUMENTS, '{"city": "Oslo"}')
        result = item(T_ROLE, "tool") + item(T_CONTENT, "late")
        said = self.ask(user("x") + before + item(T_REASONING, "hmm") + call + result + item(T_NAME, "clock") + item(T_CALL_ID, "42"))
        bare = self.ask(user("x") + before + result)
        self.assertEqual((parts(said), said[-1].reason), ([("text", "It is late.")], "stop"))
        # <think> is one token, the template's
        self.assertEqual(said[-1].n_prompt - bare[-1].n_prompt, 1 + len("hmm" "abc" "get_time" "Oslo" "clock" "42"))

    def test_reasoning_alone(self):
        events = self.ask(user("What time is it?"), flags=PARTS)
        said = parts(events)
        self.assertEqual(said[0], WHOLE[0])
        self.assertEqual([p[0] for p in said], ["reasoning", "text"])
        self.assertIn('<tool_call>\n{"name"', said[1][1])
        self.assertEqual((events[-1].reason, events[-1].n_calls), ("stop", 0))

    def test_nobody_asked(self):
        events = self.ask(user("What time is it?"))
        self.assertEqual([p[0] for p in parts(events)], ["text"])
        self.assertTrue(parts(events)[0][1].startswith("<think>\nHm."))

    def test_cut(self):
        """Cut at each token: a call that is not whole is text, and the end says so."""
        for n in range(1, 11):
            events = self.ask(item(T_TOOLS, json.dumps(TOOLS)) + user("What time is it?"), n=n)
            said = "".join(p[-1] for p in parts(events) if p[0] == "text")
            self.assertEqual([p[0] for p in parts(events) if p[0] in ("name", "arguments")], ["name", "arguments"] if n == 10 else [], n)
            self.assertEqual((events[-1].reason, events[-1].broken), ("length", int(6 <= n < 10)), n)
            self.assertEqual("<tool_call>" in said, 6 <= n < 10, n)

    def test_quoted(self):
        """The vocabulary has the marker as a token: spelt in others it is text."""
        events = self.ask(item(T_TOOLS, json.dumps(TOOLS)) + user("quote"))
        self.assertEqual((parts(events), events[-1].broken), ([("text", "Write <tool_call> and {}.")], 0))

    def test_users_write_no_marker(self):
        """Nor do tools' results: a marker of theirs is as many tokens as it has bytes."""
        for text in ("<tool_call>", "</think>", "<|im_end|>"):
            other = "x" * len(text)
            for messages in ([user(text), user(other)],
                             [user("x") + item(T_ROLE, "tool") + item(T_CONTENT, t) for t in (text, other)],
                             [item(T_TOOLS, json.dumps([{"name": "f", "description": t}])) + user("x") for t in (text, other)]):
                a, b = (self.ask(m, n=1)[-1].n_prompt for m in messages)
                self.assertEqual(a, b, text)
        raw = self.ask(item(T_PROMPT, "<tool_call>"), kind=GENERATE, n=1)
        self.assertEqual(raw[-1].n_prompt, len("<tool_call>"))

    def test_refused(self):
        for items, kind, word in (
                (item(T_TOOLS, "[{]") + user("x"), CHAT, "JSON"), (item(T_TOOLS, "[]") + user("x"), CHAT, "list"),
                (item(T_TOOLS, '[{"description": "secret"}]') + user("x"), CHAT, "name"),
                (item(T_TOOLS, "[1]") + user("x"), CHAT, "name"),
                (item(T_TOOLS, "[]") * 2 + user("x"), CHAT, "two"), (item(T_TOOLS, json.dumps(TOOLS)) + item(T_PROMPT, "x"), GENERATE, "chats"),
                (user("x") + item(T_CALL, ""), CHAT, "assistant"), (item(T_NAME, "f") + user("x"), CHAT, "behind"),
                (item(T_ROLE, "assistant") + item(T_CONTENT, "") + item(T_CALL, "1") + user("x"), CHAT, "no name"),
                (item(T_ROLE, "assistant") + item(T_CONTENT, "") + item(T_CALL, "") + item(T_NAME, "f") + item(T_ARGUMENTS, "[secret") + user("x"), CHAT, "JSON"),
                (item(T_ROLE, "assistant") + item(T_CONTENT, "") + item(T_CALL, "") + item(T_NAME, "f") + item(T_ARGUMENTS, "[1]") + user("x"), CHAT, "object"),
                (item(T_ROLE, "nobody") + item(T_CONTENT, "x"), CHAT, "tool")):
            e = self.ask(items, kind=kind)[-1]
            self.assertEqual((e.type, e.code), (ERROR, "INVALID"), (items, e))
            self.assertIn(word, e.text)
            self.assertNotIn("secret", e.text)


    def test_too_many_values(self):
        """What trees of JSON take is in the plan: 16384 values."""
        many = "[" + "{}," * 8192 + "{}]"  # a call's arguments are an object
        call = user("x") + item(T_ROLE, "assistant") + item(T_CONTENT, "") + item(T_CALL, "") + item(T_NAME, "f")
        for items in (item(T_TOOLS, '[{"name":"f","x":' + many + "}]") + user("x"), call + item(T_ARGUMENTS, '{"x":' + many + "}")):
            e = self.ask(items, n=1)[-1]
            self.assertEqual((e.type, e.code, e.count_b), (ERROR, "TOO_LARGE", 16384), e)
            self.assertGreater(e.count_a, 16384)
            self.assertIn("16384", e.text)
        ok = '[{"name":"f","x":[' + "{}," * 8000 + "{}]}]"
        self.assertNotEqual(getattr(self.ask(item(T_TOOLS, ok) + user("x"), n=1)[-1], "code", ""), "TOO_LARGE")


class Given(unittest.TestCase):
    def test_another_format(self):
        """--tool-format: these markers are none to Mistral's models, and are what they give as text."""
        folder = tempfile.mkdtemp(prefix="pt-")
        self.addCleanup(shutil.rmtree, folder)
        write(os.path.join(folder, "m.gguf"), CHAINS, TEMPLATE)
        d = Daemon("--tool-format", "mistral", model=os.path.join(folder, "m.gguf"))
        self.addCleanup(d.stop)
        lane = d.ready()
        self.addCleanup(lane.close)
        events = list(lane.events(lane.request(item(T_TOOLS, json.dumps(TOOLS)) + user("x") + sampling(max_tokens=40), kind=CHAT)))
        self.assertEqual(([p[0] for p in parts(events)], events[-1].n_calls, events[-1].reason), (["text"], 0, "stop"))

    def test_a_template_without_tools(self):
        """The model never sees them: the log says so, once."""
        folder = tempfile.mkdtemp(prefix="pt-")
        self.addCleanup(shutil.rmtree, folder)
        write(os.path.join(folder, "m.gguf"), CHAINS, "{% for m in messages %}{{ m.content }}{% endfor %}<|ask|>")
        d = Daemon(model=os.path.join(folder, "m.gguf"))
        self.addCleanup(d.stop)
        lane = d.ready()
        self.addCleanup(lane.close)
        for tools, told in ((b"", 0), (item(T_TOOLS, json.dumps(TOOLS)), 1), (item(T_TOOLS, json.dumps(TOOLS)), 1)):
            events = list(lane.events(lane.request(tools + user("x") + sampling(max_tokens=3), kind=CHAT)))
            self.assertEqual(events[-1].type, DONE, events)
            self.assertEqual(d.text().count("the model does not see them"), told)


class Replay(Tools):
    hooks = True

    def test_a_crash_anywhere(self):
        """What was told before is not told again, and no part changes its kind."""
        for n in (1, 3, 5, 6, 8, 9, 10):
            d = self.daemon
            before = d.child("pipit-engine")
            lane = d.lane()
            events = list(lane.events(lane.request(item(T_TOOLS, json.dumps(TOOLS)) + user(f"What time is it? {n}") + order(f"crash:{n}") +
                                                   sampling(max_tokens=40), kind=CHAT), timeout=60 * SLOW))
            lane.close()
            self.assertEqual((parts(events), events[-1].reason, events[-1].n_calls), (WHOLE, "tool_calls", 1), n)
            self.assertNotEqual(d.child("pipit-engine"), before)


class Python(Tools):
    def test_conversation(self):
        try:
            import cffi  # noqa: F401
        except ImportError as missing:
            self.skipTest(str(missing))
        root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        sys.path.insert(0, os.path.join(root, "client/python"))
        library = os.path.join(BUILD, "client/libpipit.so.0")
        load = [sys.executable, "-c", "import ctypes, sys; ctypes.CDLL(sys.argv[1])", library]
        if subprocess.run(load, stderr=subprocess.DEVNULL, check=False).returncode:  # a sanitizer's ends the process
            self.skipTest("Python cannot load this libpipit")
        ctypes.CDLL(library)
        import pipit

        with pipit.Client(runtime_dir=self.daemon.folder) as c:
            talk = [{"role": "user", "content": "What time is it?"}]
            a = c.generate(talk, tools=TOOLS, temperature=0, max_tokens=40)
            self.assertEqual((a.text, a.reasoning, a.done.reason, a.done.n_calls, a.done.broken),
                             ("I look.", "Hm. A clock?", "tool_calls", 1, False))
            self.assertEqual([(k.name, k.arguments, len(k.id)) for k in a.calls], [("get_time", {"city": LONG}, 9)])
            talk += [a.message(), {"role": "tool", "content": "23:59", "name": "get_time", "tool_call_id": a.calls[0].id}]
            b = c.generate(talk, tools=TOOLS, temperature=0)
            self.assertEqual((b.text, b.reasoning, b.calls, b.done.reason), ("It is late.", "", (), "stop"))
            old = c.generate(talk[:1], temperature=0, max_tokens=40)
            self.assertTrue(old.text.startswith("<think>") and not old.reasoning and not old.calls)
            self.assertEqual(c.chat("What time is it?", parts=True, temperature=0, max_tokens=40).reasoning, "Hm. A clock?")


class Cli(Tools):
    def pipit(self, *args, stdin=b"", tty=False):
        temp = [] if args[0] == "metrics" else ["--temp", "0"]
        command = [os.path.join(BUILD, "client/pipit"), args[0], "--runtime-dir", self.daemon.folder, *temp, *args[1:]]
        if tty:  # a terminal for stdout, and its bytes
            command = ["script", "-qec", " ".join(map(shlex.quote, command)), "/dev/null"]
        env = {k: v for k, v in os.environ.items() if not k.startswith("PIPIT_") and k != "NO_COLOR"}
        p = subprocess.run(command, input=stdin, capture_output=True, timeout=60 * SLOW, env=env)
        return p.returncode, p.stdout.decode(), p.stderr.decode()

    def tools(self, command=None, text=None):
        """The definitions in a file, perhaps with a command."""
        tools = json.loads(json.dumps(TOOLS))
        if command:
            tools[0]["command"] = command
        path = os.path.join(self.folder, f"tools-{len(os.listdir(self.folder))}.json")
        with open(path, "w") as f:
            f.write(json.dumps(tools) if text is None else text)
        return path

    def test_printed(self):
        said = f"I look.\nget_time {WHOLE[3][2]}\n"
        marker = os.path.join(self.folder, "ran")
        self.assertEqual(self.pipit("ask", "What?", "--tools", self.tools(f"touch {marker}")), (0, said, ""))
        self.assertFalse(os.path.exists(marker), "a command runs with --run-tools alone")
        self.assertRegex(self.pipit("metrics")[1], r'(?m)^pipit_requests_ended_total\{reason="tool_calls"\} [1-9]')
        rc, out, err = self.pipit("ask", "What?", "--tools", self.tools(), "--reasoning", "yes")
        self.assertEqual((rc, out, err), (0, "Hm. A clock?\n\n" + said, ""))

    def test_reasoning(self):
        self.assertEqual(self.pipit("ask", "What?", "-n", "4"), (0, "\n", ""))
        self.assertEqual(self.pipit("ask", "What?", "-n", "4", "--reasoning", "yes")[1], "Hm. A clock?\n")
        if shutil.which("script"):
            said = self.pipit("ask", "quote", tty=True)[1]
            self.assertEqual(said.replace("\r", ""), "Write <tool_call> and {}.\n")
            said = self.pipit("ask", "What?", "-n", "5", tty=True)[1]
            self.assertEqual(said.replace("\r", ""), "\x1b[2mHm. A clock?\x1b[0m\n\nI look.\n")

    def test_json(self):
        rc, out, err = self.pipit("ask", "What?", "--tools", self.tools(), "--json")
        lines = [json.loads(line) for line in out.splitlines()]
        self.assertEqual((rc, err, lines[-1]["finish_reason"], lines[-1]["text"], lines[-1]["reasoning"]),
                         (0, "", "tool_calls", "I look.", "Hm. A clock?"))
        self.assertEqual(lines[-1]["tool_calls"], [{"id": "call00001", "type": "function", "function": {
            "name": "get_time", "arguments": WHOLE[3][2]}}])
        self.assertEqual("".join(e["text"] for e in lines if e.get("part") == "arguments" and e["call"] == 0), WHOLE[3][2])
        last = json.loads(self.pipit("ask", "What?", "--tools", self.tools(), "--json", "-n", "8")[1].splitlines()[-1])
        self.assertEqual((last["finish_reason"], last["broken_call"], "tool_calls" in last), ("length", True, False))
        self.assertIn("<tool_call>", last["text"])

    def test_run(self):
        heard = os.path.join(self.folder, "heard")
        path = self.tools(f"cat > {heard}; printf '23:59\\377'; exit 3")
        for command, stdin in ((("ask", "What?"), b""), (("chat",), b"What?\n")):
            rc, out, err = self.pipit(*command, "--tools", path, "--run-tools", stdin=stdin)
            self.assertEqual((rc, out), (0, "I look.\nIt is late.\n"), err)
            self.assertIn("runs get_time {", err)
            with open(heard) as f:
                self.assertEqual(json.load(f), {"city": LONG})
            os.unlink(heard)
        self.assertEqual(self.pipit("ask", "What?", "--tools", self.tools(), "--run-tools")[0], 4, "a tool without a command")

    def test_chat_takes_results(self):
        rc, out, err = self.pipit("chat", "--tools", self.tools(), stdin=b"What?\n23:59\nquote\n")
        self.assertEqual((rc, out, err), (0, f"I look.\nget_time {WHOLE[3][2]}\nIt is late.\nWrite <tool_call> and {{}}.\n", ""))

    def test_mistakes(self):
        for args, word in ((("--run-tools",), "--tools FILE"), (("--tools", "/nonexistent"), "nonexistent"), (("--tools", self.tools(text="[{]")), "line 1"),
                           (("--tools", self.tools(text="[]")), "list"), (("--tools", self.tools(text="[{}]")), "no name"),
                           (("--tools", self.tools(text='[{"name": "f", "command": 1}]')), "command")):
            rc, out, err = self.pipit("ask", "x", *args)
            self.assertEqual((rc, out), (2, ""), err)
            self.assertIn(word, err)
        self.assertIn("chat template", self.pipit("ask", "x", "--raw", "--tools", self.tools())[2])


class Zmq(Tools):
    def test_conversation(self):
        try:
            import zclient
        except SystemExit:
            self.skipTest("no pyzmq or protoc")
        pb, path = zclient.pb, os.path.join(self.daemon.folder, "zmq.sock")
        if not wait_until(lambda: os.path.exists(path)):
            self.skipTest("pipit-gateway was not built")
        with zclient.Client(path) as c:
            c.ping(10 * SLOW)

            def request(**kw):
                r = pb.Request(id=os.urandom(16), **kw)
                r.chat.tools = json.dumps(TOOLS).encode()
                r.chat.sampling.temperature = 0
                r.chat.messages.add(role=pb.Message.USER, content=b"What time is it?")
                return r

            r, said = request(), []
            c.send(r)
            while True:
                e = c.receive(20 * SLOW)
                if e.HasField("delta") and e.delta.text:
                    key = (e.delta.part, e.delta.call)
                    if said and said[-1][0] == key:
                        said[-1][1] += e.delta.text
                    else:
                        said.append([key, e.delta.text])
                if e.HasField("done") or e.HasField("error"):
                    break
            self.assertEqual([(k, t.decode()) for k, t in said],
                             [((1, 0), "Hm. A clock?"), ((0, 0), "I look."), ((2, 0), "get_time"), ((3, 0), WHOLE[3][2])])
            self.assertEqual((e.done.reason, e.done.call_count, e.done.broken), (pb.Done.TOOL_CALLS, 1, False))
            done = c.last(request(unary=True), 20 * SLOW).done
            self.assertEqual((done.text, done.reasoning, done.reason), (b"I look.", b"Hm. A clock?", pb.Done.TOOL_CALLS))
            self.assertEqual([(k.name, k.arguments.decode()) for k in done.calls], [(b"get_time", WHOLE[3][2])])
            r = request(unary=True)
            m = r.chat.messages.add(role=pb.Message.ASSISTANT, content=done.text, reasoning=done.reasoning)
            m.calls.add(id=b"call00001", name=done.calls[0].name, arguments=done.calls[0].arguments)
            r.chat.messages.add(role=pb.Message.TOOL, content=b"23:59", name=b"get_time", call_id=b"call00001")
            self.assertEqual(c.last(r, 20 * SLOW).done.text, b"It is late.")
            r = request()
            r.chat.messages[0].calls.add(name=b"f")
            self.assertEqual(c.last(r, 20 * SLOW).error.code, pb.Error.INVALID)
            r = request()
            for _ in range(65):
                m.calls.add(name=b"f")
            r.chat.messages.append(m)
            self.assertEqual(c.last(r, 20 * SLOW).error.field, b"chat.messages[1].calls[64]")


if __name__ == "__main__":
    unittest.main(verbosity=2)
