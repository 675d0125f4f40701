#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Man pages, completions and the sample configuration, from what the programs say of themselves.

The programs print --help from their option tables (base/options.h); this reads it back, so that no
list of options is written twice. Used by deploy/meson.build; prints to stdout.

    describe.py man  NAME SECTION SUMMARY EXTRA VERSION PROGRAM [COMMAND...]   EXTRA: roff, or ""
    describe.py bash NAME PROGRAM [COMMAND...]
    describe.py zsh  NAME PROGRAM [COMMAND...]
    describe.py conf TEXT PROGRAM        TEXT: what stands above the settings

COMMANDs are those that the overview of --help does not list by itself. --runner EMULATOR before all that: the
programs, where they are no scripts, are for another CPU."""
import re
import subprocess
import sys

OPTION = re.compile(r"^  (?:(-\w)(?: [A-Z]+)?, |    |)(--[a-z][\w-]*)(?: (\{[^}]*\}|\S+))?(?:  +(.*))?$")
COMMAND = re.compile(r"^  ([a-z]+)  +(\S.*)$")
WORDS = re.compile(r"\[([\w.-]+(?:, [\w.-]+)* or [\w.-]+)[];]")
# Settings of the command line alone, and those that the units say there.
NOT_IN_SAMPLE = ("config", "help", "version", "instance", "runtime-dir", "cache-dir")


class Option:
    def __init__(self, letter, name, value, text):
        self.letter, self.name, self.value, self.text = letter, name, value or "", text or ""

    def flags(self):
        return [f for f in (self.letter, self.name) if f]

    def words(self):
        """The values it may have, where they are words."""
        if self.value.startswith("{"):
            return self.value[1:-1].split(",")
        found = WORDS.search(self.text)
        return re.split(r", | or ", found.group(1)) if found else []

    def kind(self):
        """file, dir, words, none (a flag) or other."""
        if not self.value:
            return "none"
        if self.words():
            return "words"
        if self.value.startswith(("FILE", "PATH", "OUTPUT", "TOKENIZER")):
            return "file"
        return "dir" if self.value == "DIR" else "other"


RUNNER = []


def runnable(argv):
    with open(argv[0], "rb") as f:
        return RUNNER + argv if f.read(4) == b"\x7fELF" else argv


class Help:
    """One --help text: usage, paragraphs before the options, options, what follows them."""

    def __init__(self, argv):
        done = subprocess.run(runnable(argv) + ["--help"], capture_output=True, text=True, check=False)
        if done.returncode or not done.stdout.startswith("usage: "):
            sys.exit(f"{' '.join(argv)} --help: exit {done.returncode}\n{done.stderr}")
        head, _, body = done.stdout.partition("\n\n")
        self.usage = " ".join(head[len("usage: "):].split())
        self.options, self.before, self.after, self.commands = [], [], [], []
        for line in body.split("\n"):
            option, command = OPTION.match(line), COMMAND.match(line)
            if option:
                self.options.append(Option(*option.groups()))
            elif self.options and re.match(r"^ {20,}\S", line):
                last = self.options[-1]
                last.text = (last.text + " " + line.strip()).strip()
            elif command and not self.options and "COMMAND" in self.usage:
                self.commands.append(command.groups())
            elif line not in ("options:",):
                (self.after if self.options else self.before).append(line)


class Program:
    def __init__(self, name, program, more_commands):
        self.name, self.help = name, Help([program])
        names = [c for c, _ in self.help.commands] + more_commands
        self.commands = {c: Help([program, c]) for c in names}
        self.summaries = dict(self.help.commands)


# ---- roff ----

def roff(text):
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    return "\\&" + text if text.startswith(".") else text


def paragraphs(lines):
    """Text in paragraphs; indented lines as they stand; 'word:' above indented lines stays with them."""
    out, plain = [], False
    for line in lines:
        if not line.strip():
            plain = False
        elif line.startswith("  "):
            if out[-1:] == [".fi"]:
                out.pop()
            else:
                out += [".PP", ".nf"]
            out += [roff(line), ".fi"]
            plain = False
        else:
            if not plain:
                out.append(".PP")
            out.append(roff(line))
            plain = True
    return out


def option_list(options):
    out = []
    for o in options:
        flags = ", ".join(f"\\fB{roff(f)}\\fR" for f in o.flags())
        value = o.value.replace("...", "")
        out += [".TP", flags + (f" \\fI{roff(value)}\\fR" if value else "") + (" ..." if o.value.endswith("...") else "")]
        out.append(roff(o.text) if o.text else "\\&")
    return out


def usage(text, name):
    rest = text[len(name):] if text.startswith(name) else " " + text
    return [f"\\fB{roff(name)}\\fR{roff(rest)}"]


def man(name, section, summary, extra, version, program, *commands):
    p = Program(name, program, list(commands))
    out = [f'.TH {name.upper()} {section} "" "pipit {version}" "pipit"', ".SH NAME", f"{roff(name)} \\- {roff(summary)}",
           ".SH SYNOPSIS", *usage(p.help.usage, name)]
    for c, h in p.commands.items():
        out += [".br", *usage(h.usage, f"{name} {c}")]
    out += [".SH DESCRIPTION", *paragraphs(p.help.before)]
    if p.help.options:
        out += [".SH OPTIONS", *option_list(p.help.options)]
    notes = paragraphs(p.help.after)
    if notes:
        out += [".SH NOTES", *notes]
    if p.commands:
        out.append(".SH COMMANDS")
    for c, h in p.commands.items():
        out += [f'.SS "{roff(name)} {c}"', *paragraphs(h.before), *option_list(h.options), *paragraphs(h.after)]
    if extra:
        with open(extra, encoding="utf-8") as f:
            out += [line.rstrip("\n") for line in f if not line.startswith('.\\" SPDX')]
    out = [line for i, line in enumerate(out)  # no paragraph break right below a heading
           if not (line == ".PP" and out[i - 1].startswith((".SH", ".SS")))]
    print("\n".join(['.\\" Generated from the program\'s option table.', *out]))


# ---- completions ----

def bash_options(options):
    """A case statement over the word before, then the list of options."""
    by_kind = {}
    for o in options:
        reply = {"words": f'compgen -W "{" ".join(o.words())}"', "file": "compgen -f", "dir": "compgen -d", "other": ":",
                 "none": None}[o.kind()]
        if reply:
            by_kind.setdefault(reply, []).extend(o.flags())
    out = ['case "$prev" in']
    for reply, flags in by_kind.items():
        fill = "return" if reply == ":" else f'mapfile -t COMPREPLY < <({reply} -- "$cur"); return'
        if reply in ("compgen -f", "compgen -d"):
            fill = "compopt -o filenames 2>/dev/null; " + fill
        out.append(f'{" | ".join(flags)}) {fill} ;;')
    out += ["esac", f'options="{" ".join(f for o in options for f in o.flags())}"']
    return out


def bash(name, program, *commands):
    p = Program(name, program, list(commands))
    function = "_" + name.replace("-", "_")
    out = [f"# Generated from the option table of {name}.", f"{function}() {{",
           'local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD - 1]}" options=""',
           "# --option=value comes as three words",
           'if [ "$cur" = "=" ]; then cur=""; elif [ "$prev" = "=" ]; then prev="${COMP_WORDS[COMP_CWORD - 2]}"; fi']
    if p.commands:
        out.append('case "${COMP_WORDS[1]}" in')
        for c, h in p.commands.items():
            out += [f"{c})", *bash_options(h.options), ";;"]
        out += ["*)", *bash_options(p.help.options), ";;", "esac",
                f'if [ "$COMP_CWORD" -eq 1 ]; then options="$options {" ".join(p.commands)} --help --version"; fi']
    else:
        out += bash_options(p.help.options)
    out += ['if [[ $cur == -* || $COMP_CWORD -eq 1 ]]; then mapfile -t COMPREPLY < <(compgen -W "$options" -- "$cur"); fi', "}",
            f"complete -o default -F {function} {name}"]
    print("\n".join(out))


def zsh_spec(o):
    text = re.sub(r"([\[\]:\\])", r"\\\1", o.text).replace("'", "'\\''")
    action = {"words": f"({' '.join(o.words())})", "file": "_files", "dir": "_files -/", "other": " ", "none": ""}[o.kind()]
    value = re.sub(r"[^\w.,|/-]", "", o.value) or "value"
    tail = f":{value}:{action}" if action else ""
    repeat = "*" if o.value.endswith("...") else ""
    if o.letter and not repeat:
        return f"'({o.letter} {o.name})'{{{o.letter},{o.name}}}'[{text}]{tail}'"
    if o.letter:
        return f"'{repeat}'{{{o.letter},{o.name}}}'[{text}]{tail}'"
    return f"'{repeat}{o.name}[{text}]{tail}'"


def zsh_arguments(options):
    return " \\\n    ".join(["_arguments -s", *map(zsh_spec, options), "'*:file:_files'"])


def zsh(name, program, *commands):
    p = Program(name, program, list(commands))
    out = [f"#compdef {name}", f"# Generated from the option table of {name}."]
    if p.commands:
        out.append('case "$words[2]" in')
        for c, h in p.commands.items():
            out += [f"{c})", '(( CURRENT > 2 )) && { shift words; (( CURRENT-- )); ' + zsh_arguments(h.options) + "; return; }",
                    ";;"]
        out.append("esac")
        described = " ".join("'{}:{}'".format(c, p.summaries.get(c, p.commands[c].usage).replace(":", "\\:").replace("'", ""))
                             for c in p.commands)
        out += ["if (( CURRENT == 2 )) && [[ $words[2] != -* ]]; then", f"local -a commands=({described})",
                "_describe command commands", "fi"]
    if p.help.options or not p.commands:
        out.append(zsh_arguments(p.help.options))
    print("\n".join(out))


# ---- sample configuration ----

def conf(text, program):
    with open(text, encoding="utf-8") as f:
        out = [line.rstrip("\n") for line in f]
    for o in Help([program]).options:
        name = o.name[2:]
        if name in NOT_IN_SAMPLE or re.search(rf"^{name} *=", "\n".join(out), re.M):
            continue
        found = re.search(r"\[[^\[\]]*\bdefault ([^];\[]+)\]", o.text)
        line = "#"
        for word in o.text.split():
            line, ready = (line + " " + word, None) if len(line) + len(word) < 96 else ("#   " + word, line)
            if ready:
                out.append(ready)
        value = found.group(1) if found else o.value.replace("...", "") if o.value else "no"
        out += [line, f"#{name} = {value}", ""]
    print("\n".join(out).rstrip("\n"))


if __name__ == "__main__":
    if sys.argv[1] == "--runner":
        RUNNER = [sys.argv[2]]
        del sys.argv[1:3]
    {"man": man, "bash": bash, "zsh": zsh, "conf": conf}[sys.argv[1]](*sys.argv[2:])
