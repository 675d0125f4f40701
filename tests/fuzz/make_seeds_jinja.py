#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/fuzz/seeds/jinja: templates of our own, whole ones and ones that mean harm."""

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

folder = pathlib.Path(__file__).parent / "seeds" / "jinja"
folder.mkdir(exist_ok=True)
for name, text in SEEDS.items():
    (folder / name).write_text(text)
