"""Known secrets leave no trace in text, JSON and bytes."""

from __future__ import annotations

import base64
import json
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsh_actors.core.redaction import Redactor

KEY = "sk-canary-0123456789abcdefXYZ"
REDACTOR = Redactor({"API_KEY": KEY, "PASS": "hunter22", "SHORT": "abc"})


def test_a_value_is_replaced_by_its_name() -> None:
    assert REDACTOR.text(f"a {KEY} b {KEY}, hunter22") == (
        "a [redacted:API_KEY] b [redacted:API_KEY], [redacted:PASS]"
    )


def test_a_short_value_is_left_alone() -> None:
    assert REDACTOR.text("abc") == "abc"


def test_text_without_a_secret_comes_back_as_the_same_object() -> None:
    text, data, value = "plain " * 100, b"plain", {"a": ["plain", 1, None]}
    assert REDACTOR.text(text) is text
    assert REDACTOR.bytes(data) is data
    assert REDACTOR.json(value) is value
    assert Redactor({}).text(KEY) is KEY


@pytest.mark.parametrize("before", ["", "u:", "us:", "usr:"])
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
def test_base64_hides_no_secret_wherever_it_stands(before: str, encode: Any) -> None:
    secret = "p~?~w>>\xff-secret-value"
    encoded = encode(f"{before}{secret}:tail".encode()).decode()
    clean = Redactor({"P": secret}).text(f"Basic {encoded}")
    assert "[redacted:P]" in clean
    assert len(clean) < len("Basic [redacted:P]") + len(encode(f"{before}:tail".encode())) + 8


def test_quoted_and_escaped_forms_are_found() -> None:
    secret = 'p@ss"w\\ord/1 é'
    redactor = Redactor({"P": secret})
    for form in (quote(secret), quote(secret, safe=""), json.dumps(secret)[1:-1]):
        assert redactor.text(f"<{form}>") == "<[redacted:P]>"


def test_a_secret_cut_by_truncation_goes_as_far_as_it_shows() -> None:
    assert REDACTOR.text(KEY[:20] + "\n[100 bytes omitted]") == "[redacted:API_KEY]\n[100 bytes omitted]"
    assert REDACTOR.text("omitted]\n" + KEY[-20:] + " end") == "omitted]\n[redacted:API_KEY] end"
    assert REDACTOR.text(KEY[:6] + " is how such keys begin") == KEY[:6] + " is how such keys begin"


def test_of_two_secrets_that_begin_alike_the_longer_goes_whole() -> None:
    redactor = Redactor({"A": "common-prefix", "B": "common-prefix-and-more"})
    assert redactor.text("common-prefix-and-more") == "[redacted:B]"
    assert redactor.text("common-prefix.") == "[redacted:A]."


def test_json_is_redacted_in_keys_and_depth_and_the_original_stays() -> None:
    value = {"env": [{KEY: [f"x{KEY}"]}, 1], "ok": True}
    assert REDACTOR.json(value) == {"env": [{"[redacted:API_KEY]": ["x[redacted:API_KEY]"]}, 1], "ok": True}
    assert KEY in value["env"][0]
    deep: Any = KEY
    for _ in range(490):
        deep = [deep]
    assert KEY not in json.dumps(REDACTOR.json(deep))


def test_bytes_are_redacted_whatever_surrounds_them() -> None:
    secret = "pässword-ü"
    clean = Redactor({"P": secret}).bytes(b"\xff\x00" + secret.encode() + b"\xfe")
    assert clean == b"\xff\x00[redacted:P]\xfe"


@given(st.text(max_size=30), st.text(min_size=8, max_size=40), st.text(max_size=30))
def test_no_value_survives_in_any_surroundings(before: str, secret: str, after: str) -> None:
    redactor = Redactor({"N": secret})
    clean = redactor.text(before + secret + after)
    assert "[redacted:N]" in clean
    assert secret not in clean.replace("[redacted:N]", "")
