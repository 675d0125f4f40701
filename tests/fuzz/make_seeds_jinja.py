#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/fuzz/seeds/jinja: templates of our own, whole ones and ones that mean harm, and those of
tests/data/jinja_vectors.jsonl, which together use every statement, filter, test and method."""

import json
import pathlib

SEEDS = {
    "chatml": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
              "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "macro": "{%- macro say(m, end='</s>') -%}{{ m.content | trim ~ end }}{%- endmacro -%}{% for m in messages %}"
             "{{ say(m, end=bos_token) }}{% endfor %}",
    "call": "{% macro box(t) %}<{{ t }}>{{ caller(1) }}{% endmacro %}{% call(x) box('a') %}{{ x }}{% endcall %}",
    "space": "{% set ns = namespace(s='', l=[]) %}{% for m in messages if m.role != 'system' %}{% set ns.s = ns.s + m.content[1:-1] %}"
             "{% set ns.l = ns.l + [m] %}{% endfor %}{{ ns.s }}{{ ns.l | tojson(indent=2) }}",
    "filters": "{{ messages | map(attribute='content') | map('upper') | join(', ') | replace('X', bos_token) | indent(2, true) }}"
               "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}{{ messages | groupby('role') }}",
    "strings": "{{ messages[0].content.split(' ')[-1].strip() }}{{ '%s|%5d' % (messages[0].content, 4) }}"
               "{{ '{:>9}{!r}'.format(messages[1].content, 'a') }}{{ messages[0].content.partition('<|')[2][::-1] }}",
    "raise": "{% if messages[0].role == 'system' %}{{ raise_exception('no ' ~ messages[0].content) }}{% endif %}",
    "recursive": "{% for i in [[1, [2]], [3]] recursive %}{{ loop.depth }}{% if i is iterable %}{{ loop(i) }}{% endif %}{% endfor %}",
    "blocks": "{% set a | upper %}{{ messages[0].content }}{% endset %}{{ a }}{% filter trim %} x {% endfilter %}"
              "{% generation %}g{% endgeneration %}{% with b = 2 %}{{ b }}{% endwith %}{% raw %}{{ }}{% endraw %}",
    "endless": "{% for a in range(99999) %}{% for b in range(99999) %}{{ a ~ b }}{% endfor %}{% endfor %}",
    "deep": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "wide": "{{ 'x' * 99999999 }}{{ [1] * 99999999 }}",
    "double": "{% set ns = namespace(s='x') %}{% for i in range(64) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "nest": "{{ " + "[" * 150 + "]" * 150 + " }}",
    "escape": "{{ ''.__class__ }}{{ [].append(1) }}{{ raise_exception.__globals__ }}",
    "open": "{% if messages %}{{ messages[",
}

# What the vectors leave out: wrong arguments, ends of ranges, rare kinds of values.
RARE = r"""
{% for x in l %}{{ loop.nope }}{{ loop.cycle() }}{% endfor %}
{{ l[-9:] }}{{ l[-9::-1] }}{{ s[-99:99] }}{{ s[-99::-2] }}{{ range(5)[::-2] }}{{ range(0, 9, 3) }}
{{ dict(a=1, **{'a': 2}) }}
{{ dict(**l) }}
{{ dict(**{1: 2}) }}
{{ 'a'.replace('a', old='b') }}
{{ 'a'.replace('a') }}
{{ 'a'.upper(1) }}
{{ 'a' | urlize }}
{{ (cycler(1))() }}
{{ +n }}{{ + -f }}{{ -t }}{{ +no }}
{{ -s }}
{% set a | replace(old='b', new='c') %}b{% endset %}{{ a }}
{{ d | dictsort(by='x') }}
{{ l | dictsort }}
{{ [[1]] | unique | list }}
{{ p | selectattr | list }}
{{ l | batch(0) }}
{{ l | slice(0) }}
{{ s | truncate(1, end='....') }}
{{ '%s %(a)s' | format(1, a=2) }}
{{ '%(a)s|%(b)5d' | format(a=1, b=2) }}
{{ d | attr('items') }}{{ (d | attr('b')) is defined }}{{ s | attr('upper') }}
{{ '99999999999999999999' | int }}{{ '-9223372036854775808' | int }}{{ '_1' | int(3) }}{{ '1__2' | int(3) }}{{ [] | int(4) }}
{{ 1e300 | int }}
{{ '1e999' | float }}{{ 'inf' | float | round(2) }}{{ '1.5x' | float(2) }}{{ [] | float(3.5) }}
{{ s | round }}
{{ 1.5 | round(method='up') }}
{{ '%(a)s' % 1 }}
{{ '%(a)s' % {'b': 1} }}
{{ '%*d|%-*d|%.*f|%*d' % (5, 1, 5, 2, 3, 1.5, -4, 7) }}{{ '%c%c' % ('a', 'é') }}{{ '%ld %hi' % (1, 2) }}{{ '% d|%+d|% d|%x' % (5, 6, -7, -255) }}{{ '%a' % s }}
{{ '%c' % 'ab' }}
{{ '%y' % 1 }}
{{ '%' % () }}
{{ '{}{0}'.format(1) }}
{{ '{0}{}'.format(1) }}
{{ '{x}'.format(1) }}
{{ '{!x}'.format(1) }}
{{ '{!rx}'.format(1) }}
{{ '}'.format() }}
{{ '{!s:>6}{!a}{!s}'.format(s, s, n) }}{{ '{:+}{: }{:+}'.format(1.5, 2.5, 1e300) }}{{ '{: d}{:_}{:n}{:c}{:o}{:#b}{:#o}{:X}{:08.3f}{:G}{:E}'.format(1, 1234567, 5, 65, 8, 5, 8, 255, 1.5, 1e-9, 2.0) }}{{ '{:=+9,}'.format(1234567) }}
{{ '{:.9999}'.format(1.0) }}
{{ '{:d}'.format(1.5) }}
{{ '%d' % 1e300 }}
{{ '{:q}'.format(1) }}
{{ '{:.2d}'.format(1) }}
{{ '{:s}'.format(1) }}
{{ '{:>5}'.format(l) }}
{{ '{:z>}'.format(missing) }}
{{ '{}'.format(missing) }}{{ '{!r:5}'.format(l) }}{{ '{:.1}{:5}'.format(no, t) }}
{{ range() }}
{{ range(1, b=2) }}
{{ dict(1, 2) }}
{{ dict([1]) }}
{{ dict([[1, 2, 3]]) }}
{{ namespace(_a=1) }}
{{ strftime_now('') }}{{ strftime_now('%Y' * 600) }}
{{ cycler() }}
{% set c = cycler(1, 2) %}{{ c.next() }}{{ c.reset() }}{{ c.next() }}{{ c }}{{ c.nope }}{{ c == c }}
{{ ('inf' | float) | tojson }}{{ ('-inf' | float) | tojson }}{{ ('nan' | float) | tojson }}{{ [1e400, -1e400] | tojson }}
{{ l | tojson(separators=[1]) }}
{{ l | tojson(separators=[1, 2]) }}
{{ l | tojson(indent='x' * 9) }}{{ l | tojson(indent=-1) }}
{{ 99999999999999999999 }}
{{ '\ud800' }}
{{ '\uzz' }}
{{ ? }}
{{ 'ﬁx ß ŉ'.title() }}{{ 'ﬁx'.capitalize() }}{{ 'İI'.lower() }}{{ 'ß'.isupper() }}{{ 'aB'.islower() }}{{ 'AB'.istitle() }}{{ '9a'.isidentifier() }}{{ ''.isidentifier() }}{{ 'aB' is lower }}{{ 'Ab' is upper }}
{{ 'abcb'.rindex('b') }}{{ 'abc'.rindex('z') }}
{{ 'abc'.startswith('z') }}{{ 'abc'.removeprefix('z') }}{{ 'abc'.find('c', 9) }}{{ 'abc'.find('c', -1, 9) }}{{ 'abc'.count('', 2, 1) }}{{ 'abc'.count('b', 9) }}{{ 'abc'.endswith('c', 0, 2) }}{{ 'a'.find('abc') }}{{ 'a'.rfind('abc') }}
{{ 'abc'.partition('') }}
{{ d.get([]) }}
{{ 'a'.center(5, 'xy') }}
{{ 'abc'.center(1) }}{{ 'abc'.ljust(-1) }}{{ '+1'.zfill(4) }}{{ 'a\r\n\tb'.expandtabs() }}{{ 'é'.center(4, 'é') }}
{{ 1 ** -1 }}{{ (-1) ** 3 }}{{ (-1) ** 9223372036854775807 }}{{ 0 ** 9223372036854775807 }}{{ 1 ** 9223372036854775807 }}{{ 1 - 2 }}{{ 1.5 - 2 }}{{ 1.5 ** 2 }}{{ 2 ** 0.5 }}{{ 1.5 / 2 }}{{ 1.5 // 2 }}{{ -1.5 % 2 }}{{ true + true }}
{{ 9223372036854775807 * 2 }}
{{ 9 ** 99 }}
{{ 0 ** -1 }}
{{ 1.5 / 0 }}
{{ 1.5 % 0.0 }}
{{ 1 % 0 }}
{{ [] in d }}
{{ 1 in namespace() }}
{{ 1 in 5 }}
{{ s in l }}{{ 2 in range(9) }}{{ 'x' in (p | map(attribute='k')) }}{{ (1, 2) in {(1, 2): 3} }}{{ [1] in [[1], 2] }}
{% if x %}{% else
{% for x in y %}{% else %}{% elif %}
{% macro m(a,) %}{{ a }}{% endmacro %}{{ m(1) }}{{ m == m }}{{ m is callable }}
{% macro m(a=1, b) %}{% endmacro %}
{% call 1 %}{% endcall %}
{% block x y %}{% endblock %}
{% block x %}{% endblock y %}
{{ d['a', 'b'] }}{{ {(1, 2): 3}[1, 2] }}{{ {(1, 2): 3}[1, 2,] }}
{{ d[] }}
{{ dict(a=1, 2) }}
{{ 1 | a.b.c }}
{{ 1 is a.b }}
{{ 1 is odd is even }}
{{ (s | upper)() }}
{{ s | upper() () }}
{% set a, = [1] %}{{ a }}{% for a, in [[1]] %}{{ a }}{% endfor %}{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}
{{ missing is sameas missing }}{{ [missing] }}{{ [range, m, joiner(), namespace(), loop] }}{{ (p | map('upper')) }}{{ [p | map('length')] }}
{{ 'x' * 70000 }}
{{ '\xff' }}{{ 'é'[0] }}{{ 'a\u2603' | upper }}{{ u[1] ~ x_token }}{{ (u ~ x_token)[0:3] ~ (u ~ x_token)[9:] }}
{% set ns = namespace(a=[]) %}{% for i in range(300) %}{% set ns.a = [ns.a] %}{% endfor %}
{{ {([1],): 2} }}
{{ {range(2): 1, missing: 2, m: 3, 1.0: 4, true: 5, -0.0: 6, 0: 7} | length }}{{ 0.0 or 'z' }}{{ range(2) == range(2) }}{{ s.upper == s.upper }}{{ joiner() == joiner() }}
{% set q = {'a': 1, 'b': 2, 'c': 3, 'd': 4, 'e': 5, 'f': 6, 'g': 7, 'h': 8, 'i': 9, 'j': 10, 'a': 11} %}{{ q.a }}{{ q.j }}{{ q.z }}{{ q | length }}{{ q == q }}{{ q == {'a': 11} }}{{ [1] == [1, 2] }}{{ [1] == [2] }}{{ {'a': 1} == {'a': 2} }}{{ {'a': 1} == {'b': 1} }}
{{ [1, 2] < [1] }}{{ [1] < [1, 2] }}{{ ('nan' | float) < 1 }}{{ 1.5 < 2 }}{{ [1.5, ('nan' | float), 1] | sort }}{{ [[2], [1]] | sort }}{{ [(2, 1), (1, 2)] | max }}
{{ x is in }}{{ n is }}
{{ [1, 'a'] | max }}
{{ s | format }}{{ '%s' | format() }}
{{ messages | groupby('content') | list }}{{ messages | map(attribute='content') | sort | unique | list }}{{ p | groupby('in', default=3) }}
{{ l | first(1) }}
{{ range(99999) | batch(3) | list | length }}
{{ 'a' 'b' ~ 'c' }}{{ 0x }}{{ 0b12 }}{{ 1_ }}{{ 1.e5 }}{{ 1e+ }}{{ 0o8 }}{{ 1__0 }}
{{ deep.a[4] | wordcount }}{{ deep.a[4] | indent(first=true) }}{{ deep | string | length }}{{ messages[1].content | e }}{{ messages[1].content | trim('☃') }}{{ messages[1].content.split('☃') }}
"""

PER_SEED = 16  # templates, which a NUL byte divides
NO_MEMORY = b"\xffF\0\0"  # fail.h: every allocation fails in turn

folder = pathlib.Path(__file__).parent / "seeds" / "jinja"
folder.mkdir(exist_ok=True)
for name, text in SEEDS.items():
    (folder / name).write_text(text)
root = pathlib.Path(__file__).parents[1]
lines = (root / "data" / "jinja_vectors.jsonl").read_text().splitlines()[1:]
templates = [json.loads(line)["template"].encode() for line in lines]
for i in range(0, len(templates), PER_SEED):
    (folder / f"vectors_{i // PER_SEED}").write_bytes(b"\0".join(templates[i:i + PER_SEED]))
rare = RARE.strip("\n").encode().split(b"\n")
for i in range(0, len(rare), PER_SEED):
    (folder / f"rare_{i // PER_SEED}").write_bytes(b"\0".join(rare[i:i + PER_SEED]))
(folder / "bytes").write_bytes(b"\xff{{ '\xfe' | upper }}{{ '\xc3'[0] }}{{ '\x80' | tojson(ensure_ascii=true) }}a\r\nb\r\xc3{{ '\xfe'.strip('\xfe') }}")
(folder / "brackets").write_bytes(b"{{ " + b"[" * 300)
(folder / "no_memory").write_bytes(SEEDS["filters"].encode() + NO_MEMORY)
