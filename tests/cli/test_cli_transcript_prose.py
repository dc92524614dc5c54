"""Markdown of replies as HTML: what is laid out, and that any text stays text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsh_actors.cli.transcript_prose import prose
from tests.cli.transcript_sample import Page
from tests.cpu_kit import cpu_seconds


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("one\ntwo\n\nthree", '<p dir="auto">one<br>two</p><p dir="auto">three</p>'),
        ("# A", "<h4>A</h4>"),
        ("###### A ##", "<h6>A</h6>"),
        ("---", "<hr>"),
        ("- a\n- b", '<ul><li><p dir="auto">a</p></li><li><p dir="auto">b</p></li></ul>'),
        ("3. a", '<ol start="3"><li><p dir="auto">a</p></li></ol>'),
        ("- a\n\t- b", '<ul><li><p dir="auto">a</p><ul><li><p dir="auto">b</p></li></ul></li></ul>'),
        ("> a", '<blockquote><p dir="auto">a</p></blockquote>'),
        ("```py\n\tx = 1 < 2\n```\n", '<pre dir="auto" class="code" data-lang="py">\n\tx = 1 &lt; 2</pre>'),
        ("```\nnever closed", '<pre dir="auto" class="code">\nnever closed</pre>'),
        ("**a *b* c**", '<p dir="auto"><strong>a <em>b</em> c</strong></p>'),
        ("`a*b*`", '<p dir="auto"><code>a*b*</code></p>'),
        ("2 * 3 * 4 and a_b_c", '<p dir="auto">2 * 3 * 4 and a_b_c</p>'),
        (
            "[x](https://a.b/c?d=1&e=2)",
            '<p dir="auto"><a href="https://a.b/c?d=1&amp;e=2" rel="noopener noreferrer">x</a></p>',
        ),
        ("[x](javascript:alert)", '<p dir="auto">[x](javascript:alert)</p>'),
        ("<b>", '<p dir="auto">&lt;b&gt;</p>'),
        ("", ""),
    ],
)
def test_a_mark_becomes_its_element(text: str, expected: str) -> None:
    assert prose(text) == expected


def test_a_table_has_a_head_and_rows() -> None:
    table = Page(prose("| a | b |\n|---|:-:|\n| 1 | `x` |\n| 2 |  |\nafter")).root
    assert [cell.text for cell in table.all("th")] == ["a", "b"]
    assert [cell.text for cell in table.all("td")] == ["1", "x", "2", ""]
    assert table.children[-1] == table.all("p")[0] and table.all("p")[0].text == "after"


@given(st.text(alphabet="ab \n`*_#>|-1.[]()~", max_size=80))
def test_no_letter_is_lost_and_every_element_is_closed(text: str) -> None:
    shown = Page(prose(text)).root.text
    labels = text.count("```") + text.count("~~~")  # what follows a fence is an attribute
    if not labels:
        assert [c for c in shown if c in "ab"] == [c for c in text if c in "ab"]


@pytest.mark.parametrize(
    "unit",
    [
        "`a ",
        "**",
        "*a ",
        "[a](",
        "> ",
        "- ",
        "  - a\n",
        "| a |\n|-|\n",
        "```\n",
        "https://a",
        "1. ",
        "#",
        "` `` ",
    ],
)
def test_the_time_grows_with_the_length(unit: str) -> None:
    assert cpu_seconds(lambda: prose(unit * (100_000 // len(unit))), repeats=2) < 2.0
