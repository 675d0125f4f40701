#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Control flow of a kernel's machine code, for tools/check_sass.py: its loops, and the way that a warp takes through one.

Code is a list of (address, instruction). Blocks are runs of instructions without a branch. A loop is what leads back to
a block that comes before all of it (a natural loop), wherever the compiler has laid its parts: cold ones often lie
behind the kernel's end. A call of a function counts as its own instruction alone, because only slow paths of arithmetic
are called; a call of another address is how sm_80 leaves some loops, and nothing returns from there.

The path of a loop goes once round and takes one side of each branch. Of all ways round it has the most gain, which the
caller defines, and of those the fewest instructions. A loop within it is passed once.
"""
import re

GUARD = r"^(@!?U?P\w+ )?"
BRANCH = re.compile(GUARD + r"(BRA|JMP|CALL)\b[\w.]*\s+(.*?)(0x[0-9a-f]+)$")
BEGIN_JOIN = re.compile(GUARD + r"BSSY\S*\s+(B\d+), (0x[0-9a-f]+)$")
JOIN = re.compile(GUARD + r"BSYNC\S*\s+(?:\S+, )?(B\d+)$")
TRIES = 200
NEGATED = {"NE": "EQ", "GE": "LT", "LE": "GT"}  # of integers
PLAIN = re.compile(r"^U?(ISETP|FSETP|LOP3|PLOP3|IADD3|IADD|VIADD|IMAD|SHF|LEA|MOV|SEL|FSEL|PRMT|IMNMX|VIMNMX|FADD|FMUL|"
                   r"FFMA|FMNMX|IABS)$")  # one register, from no memory; beside it predicates
REGISTER = re.compile(r"\bU?[RP]\d+\b")
TABLE = re.compile(GUARD + r"(BRX|BRXU|JMX|JMXU)\b.* -> (.*)$")
END = re.compile(GUARD + r"(EXIT|RET|BRXU?|JMXU?|KILL)\b")


class Values:
    """What registers hold along a way: equal values have equal names. What is not known to be equal has a new name."""

    def __init__(self):
        self.of, self.made = {}, 0

    def _new(self):
        self.made += 1
        return self.made

    def _named(self, text):
        return REGISTER.sub(lambda m: f"<{self.of.get(m.group(), m.group())}>", text)

    def pass_(self, text):
        guard, op, rest = re.match(GUARD + r"(\S+)\s*(.*)", text.replace(".reuse", "")).groups()
        operands = [o.strip() for o in rest.split(",")]
        kind = op.split(".")[0]
        if not PLAIN.match(kind):
            self._forget(kind, operands)
            return
        if re.match(r"U?P[\dT]", operands[0]):  # a test, and its other result or none
            to = operands[:2]
        else:
            to = operands[:1] + [o for o in operands[1:3] if re.match(r"^U?P\d", o)]
        # behind a guard it may be what it was before
        what = self._new() if guard else self._named(" ".join([op, *operands[len(to):]]))
        if ".WIDE" in op or ".64" in op:  # and the register behind it
            to.append(re.sub(r"\d+$", lambda m: str(int(m.group()) + 1), to[0]))
        for i, o in enumerate(to):
            if REGISTER.fullmatch(o):
                self.of[o] = f"{what}#{i}"

    def _forget(self, kind, operands):
        """An instruction that may write any predicate it names, and as many registers as it can from its first one on."""
        wide = 128 if "GMMA" in kind else 4
        if kind == "R2P":
            self.of.update({f"P{i}": self._new() for i in range(8)})
        first = True
        for m in REGISTER.finditer(" ".join(operands)):
            name, number = re.match(r"(U?[RP])(\d+)", m.group()).groups()
            if name.endswith("P"):
                self.of[m.group()] = self._new()
            elif first:
                self.of.update({f"{name}{int(number) + i}": self._new() for i in range(wide)})
                first = False

    def condition(self, guard, operand):
        """(comparison, whether a branch with this guard or operand is taken when it holds), None where two decide."""
        names = [n for n in ((guard or "").strip(" @"), operand.strip(" ,")) if n and n.strip("!") not in ("PT", "UPT")]
        if len(names) != 1 or not REGISTER.fullmatch(names[0].lstrip("!")):
            return None
        what, sense = self.of.get(names[0].lstrip("!"), names[0].lstrip("!")), not names[0].startswith("!")
        if m := re.match(r"(U?ISETP)\.(NE|GE|LE)(\..* PT#0)$", str(what)):
            return f"{m.group(1)}.{NEGATED[m.group(2)]}{m.group(3)}", not sense
        return what, sense


class Flow:
    """blocks: (first, end) of instructions; next: numbers of the blocks behind each; order: blocks that are reached from
    the start, each before what follows but for the ways back; place: a block's number in order, -1 without."""

    def __init__(self, code):
        self.texts = [t for _, t in code]
        at = {a: i for i, (a, _) in enumerate(code)}
        marks = {0}
        for i, text in enumerate(self.texts):
            branch, begin, table = BRANCH.match(text), BEGIN_JOIN.match(text), TABLE.match(text)
            if branch:
                marks.add(at.get(int(branch.group(4), 16), 0))
            if table:
                marks.update(at.get(int(a, 16), 0) for a in table.group(3).split())
            if begin:
                marks.add(at.get(int(begin.group(3), 16), 0))
            if branch or END.match(text) or JOIN.match(text):
                marks.add(i + 1)
        firsts = sorted(m for m in marks if m < len(code))
        self.blocks = list(zip(firsts, firsts[1:] + [len(code)]))
        self.next = [[] for _ in self.blocks]
        number = {first: n for n, first in enumerate(firsts)}
        self.order = self._visit(number, at)
        self.place = [-1] * len(self.blocks)
        for i, n in enumerate(self.order):
            self.place[n] = i
        self.loops = self._loops()

    def _leave(self, n, joins, number, at):
        """Blocks behind block n. joins: where the threads of each barrier meet, brought up to date."""
        first, end = self.blocks[n]
        for text in self.texts[first:end]:
            if m := BEGIN_JOIN.match(text):
                joins[m.group(2)] = int(m.group(3), 16)
        text = self.texts[end - 1] if end > first else ""
        branch, join, table, stop = BRANCH.match(text), JOIN.match(text), TABLE.match(text), END.match(text)
        to, falls = [], True
        if branch:
            to.append(int(branch.group(4), 16))
            falls = bool(branch.group(1) or branch.group(3).strip())
        elif join and join.group(2) in joins:
            to.append(joins[join.group(2)])
            falls = bool(join.group(1))
        elif stop:
            to += [int(a, 16) for a in table.group(3).split()] if table else []
            falls = bool(stop.group(1))
        out = [number[end]] if falls and end in number else []
        return list(dict.fromkeys(out + [number[at[a]] for a in to if a in at]))

    def _visit(self, number, at):
        if not self.blocks:
            return []
        done, after = {0}, []
        joins = {}
        self.next[0] = self._leave(0, joins, number, at)
        stack = [(0, iter(self.next[0]), joins)]
        while stack:
            n, rest, joins = stack[-1]
            to = next(rest, None)
            if to is None:
                after.append(n)
                stack.pop()
            elif to not in done:
                done.add(to)
                own = dict(joins)
                self.next[to] = self._leave(to, own, number, at)
                stack.append((to, iter(self.next[to]), own))
        return after[::-1]

    def _loops(self):
        """{first block: blocks of the loop}"""
        before = [[] for _ in self.blocks]
        for n in self.order:
            for to in self.next[n]:
                before[to].append(n)
        above = {}  # the nearest block that every way to a block passes
        changed = True
        while changed:
            changed = False
            for n in self.order:
                known = [b for b in before[n] if b in above]
                new = n if n == 0 else known[0]
                for other in known[1:] if n else []:
                    while new != other:
                        while self.place[new] > self.place[other]:
                            new = above[new]
                        while self.place[other] > self.place[new]:
                            other = above[other]
                if above.get(n) != new:
                    above[n] = new
                    changed = True
        loops = {}
        for n in self.order:
            for head in self.next[n]:
                up = n
                while up not in (head, 0):
                    up = above[up]
                if up != head:
                    continue
                body, work = loops.setdefault(head, {head}), [n]
                while work:
                    b = work.pop()
                    if b not in body:
                        body.add(b)
                        work += before[b]
        return loops

    def text_of(self, blocks):
        return [t for b in sorted(blocks) for t in self.texts[slice(*self.blocks[b])]]

    def path(self, head, gain):
        """The instructions of the loop's path. gain(texts): a tuple of numbers, which add up along a way."""
        best, work, tries = None, [frozenset()], 0  # edges that a way must not take
        while work and tries < TRIES:
            banned = work.pop()
            score, way = self._best_way(head, gain, banned)
            tries += 1
            if way is None or (best and score <= best[0]):
                continue
            clash = self._clash(way, head)
            if clash:
                work += [banned | {edge} for edge in clash]
            else:
                best = score, way
        return self._texts_along(best[1]) if best else []

    def _texts_along(self, way):
        return [t for b in way for t in self.texts[slice(*self.blocks[b])]]

    def _best_way(self, head, gain, banned):
        """(gain, - instructions) and the blocks of a way round that goes along none of the banned edges."""
        body = self.loops[head]
        best, ends = {head: ((), None)}, []
        for n in sorted(body, key=lambda b: self.place[b]):
            if n not in best:
                continue
            texts = self._texts_along([n])
            own = (*gain(texts), -len(texts))
            total = tuple(x + y for x, y in zip(best[n][0] or (0,) * len(own), own))
            best[n] = total, best[n][1]
            for to in self.next[n]:
                if (n, to) in banned:
                    continue
                if to == head:
                    ends.append((total, n))
                elif to in body and self.place[to] > self.place[n] and (to not in best or total > best[to][0]):
                    best[to] = total, n
        if not ends:
            return None, None
        (score, n), way = max(ends), []
        while n is not None:
            way.append(n)
            n = best[n][1]
        return score, way[::-1]

    def _clash(self, way, head):
        """Two edges of a way of which one asks that a comparison holds and the other that it does not."""
        values, taken = Values(), {}
        for n, to in zip(way, way[1:] + [head]):
            for text in self._texts_along([n]):
                values.pass_(text)
            branch = BRANCH.match(self.texts[self.blocks[n][1] - 1])
            held = values.condition(branch.group(1), branch.group(3)) if branch and len(self.next[n]) == 2 else None
            if held:
                what, sense = held
                jumps = to != n + 1
                was, edge = taken.setdefault(what, (jumps == sense, (n, to)))
                if was != (jumps == sense):
                    return edge, (n, to)
        return None

    def before(self, pattern):
        """Instructions that a warp may pass before one that pattern matches."""
        done, work, out = set(), [0] if self.blocks else [], []
        while work:
            n = work.pop()
            if n in done:
                continue
            done.add(n)
            for text in self.texts[slice(*self.blocks[n])]:
                if pattern.match(text):
                    break
                out.append(text)
            else:
                work += self.next[n]
        return out


def one_side(texts, weight):
    """A way's instructions, but of those with a weight that one predicate lets through or holds back only one side, the
    heavier one."""
    values, sides, held = Values(), {}, []
    for text in texts:
        guard = re.match(GUARD, text).group(1)
        held.append(values.condition(guard, "") if guard and weight(text) else None)
        values.pass_(text)
        if held[-1]:
            what, sense = held[-1]
            sides.setdefault(what, [0, 0])[sense] += weight(text)
    heavier = {what: on >= off for what, (off, on) in sides.items()}
    return [t for t, h in zip(texts, held) if not h or heavier[h[0]] == h[1]]
