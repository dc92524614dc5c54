"""Files quoted before the words of a prompt, and those words alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsh_actors.core.quoted_files import quoted_file, without_quoted_files

TEXTS = st.text(st.sampled_from("ab`\n :File"), max_size=30)


@given(st.lists(st.tuples(TEXTS.map(lambda name: f"n{name}"), TEXTS), max_size=3), TEXTS)
def test_what_a_person_said_is_what_follows_the_files(files: list[tuple[str, str]], words: str) -> None:
    prompt = "\n\n".join([*(quoted_file(name, text) for name, text in files), f"say {words}"])
    assert without_quoted_files(prompt) == f"say {words}"


@pytest.mark.parametrize(
    "prompt",
    ["File a:\n```\nb", "File a:\n```\nb\n```", "File a:\n```\nb\n```\n\n ", "File a:\nb\n\nc", "", "words"],
)
def test_a_prompt_without_words_after_whole_files_stays(prompt: str) -> None:
    assert without_quoted_files(prompt) == prompt
