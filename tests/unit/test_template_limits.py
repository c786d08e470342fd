"""Chat templates that make too much text are stopped before they fill the memory."""

import json
import random

import pytest

from kestrel.errors import RequestError
from kestrel.text.chat_template import render
from kestrel.text.template_limits import MAX_CHARACTERS

USER = [{"role": "user", "content": "Hi"}]
REFUSED = "refused the messages: its texts, lists, ranges and large numbers may take 67,108,864 "

#: Each would make a gigabyte or more, or work for hours.
BOMBS = [
    "{{ 'a' * 10**10 }}",
    "{{ 10**10 * 'a' }}",
    "{{ ([0] * 10**10)|length }}",
    "{{ (10**1000000)**1000000 % 7 }}",
    "{% set n = namespace(x=7**99) %}{% for i in range(40) %}{% set n.x = n.x * n.x %}{% endfor %}",
    "{% set n = namespace(x='ab') %}{% for i in range(40) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "{% set n = namespace(x='ab') %}{% for i in range(40) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "{% set n = namespace(x=[1]) %}{% for i in range(40) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%.1000000000f' % 1 }}",
    "{{ '%*d' % (1000000000, 1) }}",
    "{{ ('%s' * 100000) % (messages * 0 + ['a' * 100000] * 100000) }}",
    "{{ '{:1000000000}'.format(1) }}",
    "{{ '{:{w}}'.format(1, w=1000000000) }}",
    "{{ ('{0}' * 100000).format('a' * 100000) }}",
    "{{ '{x:1000000000}'.format_map({'x': 1}) }}",
    "{{ '%1000000000d'|format(1) }}",
    "{{ 'a'.center(1000000000) }}{{ 'a'.rjust(1000000000) }}",
    "{{ '7'.zfill(1000000000) }}",
    "{{ '\\t'.expandtabs(1000000000) }}",
    "{{ (1).to_bytes(1000000000, 'big')|length }}",
    "{{ 'a'|center(1000000000) }}",
    "{{ ('a\n' * 100000)|indent(100000) }}",
    "{{ ('a\n' * 100000)|indent('a' * 100000) }}",
    "{{ [1]|batch(1000000000, 'x')|list|length }}",
    "{{ [1]|slice(1000000000)|list|length }}",
    "{{ 1.5|round(1000000000, 'floor') }}",
    "{{ (['a' * 100000] * 100000)|join }}",
    "{{ ('a' * 100000).join(['b'] * 100000) }}",
    "{{ ('a' * 100000)|replace('a', 'b' * 100000) }}",
    "{{ ('a' * 100000).replace('a', 'b' * 100000) }}",
    "{{ ('a' * 100000).replace('', 'b' * 100000) }}",
    "{{ ('a' * 100000).translate({97: 'b' * 100000}) }}",
    "{{ ['a' * 100000] * 100000 }}",
    "{{ (['a' * 100000] * 100000)|string|length }}",
    "{{ (['a' * 100000] * 100000)|pprint }}",
    "{{ (['a' * 100000] * 100000)|tojson }}",
    "{{ [1]|tojson(indent=1000000000) }}",
    "{{ namespace(x=['a' * 100000] * 100000) }}",
    "{% for i in range(100000) %}{{ 'a' * 10000 }}{% endfor %}",
    "{% set x = 'a' * 10000 %}{% for i in range(100000) %}{{ x }}{% endfor %}",
    "{% set y %}{% for i in range(100000) %}{{ 'a' * 10000 }}{% endfor %}{% endset %}",
    "{% macro m() %}{% for i in range(99999) %}{{ 'a' * 9999 }}{% endfor %}{% endmacro %}{{ m() }}",
    "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
]


@pytest.mark.parametrize("template", BOMBS)
def test_too_much_text(template):
    with pytest.raises(RequestError, match=REFUSED):
        render(template, USER)
    assert render("{{ messages[0].content }}", USER) == "Hi"  # the next request is unaffected


@pytest.mark.parametrize(
    ("template", "step"),
    [
        ("{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}", "range()"),
        ("{% set x = 9**(9**9) %}", "the operator **"),
        ("{{ [1] * 10**9 }}", "the operator *"),
        ("{{ 'a'.center(10**9) }}", "center()"),
        ("{{ 'a'|center(10**9) }}", "the filter center"),
        ("{% for i in range(7000) %}{{ 'a' * 9999 }}{% endfor %}", "the operator *"),
        ("{% set a = 'a' * 9**7 %}{% for i in range(99) %}{{ a }}{% endfor %}", "the text written"),
    ],
)
def test_the_step_that_goes_beyond_the_limit_is_named(template, step):
    with pytest.raises(RequestError) as caught:
        render(template, USER)
    assert str(caught.value).endswith(f" characters in all, and {step} goes beyond that")


def test_the_limit_is_of_one_rendering_and_exact():
    half = MAX_CHARACTERS // 2 - 10
    for _ in range(3):
        assert len(render("{{ 'a' * n }}", USER, n=half)) == half  # made once, written once
    with pytest.raises(RequestError, match=REFUSED):
        render("{{ 'a' * n }}", USER, n=half + 20)


def test_a_long_conversation_is_far_below_it():
    message = {"role": "user", "content": "word " * 10**6}
    template = "{% for m in messages %}{{ '<' + m.role + '>' + m.content + '\n' }}{% endfor %}"
    assert len(render(template, [message] * 2)) == 2 * (5 * 10**6 + 7)


def test_what_the_limits_watch_over_computes_what_it_did():
    import jinja2

    plain = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    cases = [
        "{{ 'a' + 'b' }}{{ [1] + [2] }}{{ 1 + 2.5 }}{{ 'ab' * 2 }}{{ 2 * [1] }}{{ 2 ** 10 }}",
        "{{ 2 ** -1 }}{{ 2.5 ** 2 }}{{ -3 % 2 }}{{ 'x' * -1 }}{{ '%s-%05.2f' % ('a', 1.5) }}",
        "{{ 'a' ~ 1 ~ none ~ [1, 'b'] ~ nothing }}{{ nothing }}{{ 'a%' }}",
        "{{ '%(k)s' % {'k': 1} }}{{ '{} {k!r:>5} {:04d}'.format('a', 7, k='z') }}",
        "{{ 'ab'.center(7) }}|{{ 'ab'|center(7) }}|{{ 'a\nb'|indent(2, true) }}|{{ 'a'.zfill(3) }}",
        "{{ [1, 2, 3]|batch(2, 'x')|list }}{{ [1, 2, 3]|slice(2)|list }}{{ 2.567|round(2) }}",
        "{{ [1, 'b']|join(', ') }}{{ ','.join(['a', 'b']) }}{{ [1, 2]|map('string')|join('+') }}",
        "{{ ','.join(['a', 'b']|reverse) }}{{ 'aXbX'.replace('X', 'yy', 1) }}",
        "{{ 'a b'|urlencode }}{{ '<'|escape }}{{ 'see a.com'|urlize }}{{ 'a b c'|wordwrap(3) }}",
        "{{ 'ab'|replace('a', 'c') }}{{ [1, 2]|sum }}{{ {'a': 1}|pprint }}",
        "{{ {'k': 'v'}|xmlattr }}{{ {'a': [1]} }}{{ 1.5 }}{{ 5|string }}",
        "{% set x %}a{{ 1 }}{% endset %}{{ x }}",
        "{% macro m(a) %}<{{ a }}>{% endmacro %}{{ m(2) ~ m(3) }}",
        "{{ {'a': 1}.items() }}{{ range(3) }}{{ 'a'.translate({97: 'b'}) }}{{ true }}",
    ]
    for case in cases:
        assert render(case, USER) == plain.from_string(case).render(), case


def test_json_is_that_of_the_standard_library():
    draw = random.Random(4)

    def value(depth: int):
        kinds = [None, True, -3, 2.5, "é\n\"<", "", float("inf")]
        if depth == 0 or draw.random() < 0.4:
            return draw.choice(kinds)
        parts = [value(depth - 1) for _ in range(draw.randrange(4))]
        return parts if draw.random() < 0.5 else {f"k{i}": part for i, part in enumerate(parts)}

    for _ in range(200):
        given = value(4)
        for options in ({}, {"indent": 2}, {"ensure_ascii": True}, {"separators": [",", ":"]}):
            text = render("{{ x|tojson(**o) }}", USER, x=given, o=options)
            assert text == json.dumps(given, **{"ensure_ascii": False, **options})
