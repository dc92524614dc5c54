"""`dsh session search`: which sessions hold these words, each with the place that fits best."""

from __future__ import annotations

import tempfile
from dataclasses import asdict

import click

from dsh_actors.adapters.storage.backend import open_index
from dsh_actors.adapters.storage.index_search import Hit
from dsh_actors.cli.failures import one_line
from dsh_actors.cli.places import working_directory
from dsh_actors.cli.session_common import as_json_option, configuration, time_text, write_json, write_text
from dsh_actors.cli.stored import open_storage
from dsh_actors.config import Config
from dsh_actors.errors import StorageError, UsageError

__all__ = ["COMMAND"]

_MOST = 10_000
_HINT = "name a directory with room in TMPDIR"


@click.command("search", short_help="Find sessions by their words.")
@click.argument("words", nargs=-1, required=True)
@click.option(
    "-n", "--limit", type=click.IntRange(1, _MOST), default=20, help="No more than this many (default 20)."
)
@click.option("--here", is_flag=True, help="Only sessions of the current directory.")
@as_json_option
def search(words: tuple[str, ...], limit: int, here: bool, as_json: bool) -> int:
    """Find the sessions where a prompt, an answer, a tool's call or result or a title has all WORDS.

    Whole words count, upper and lower case alike; several words in one argument must follow each other.
    The best session comes first, each once: with the event that fits best, and the words around.
    """
    config = configuration()
    if not any(any(map(str.isalnum, word)) for word in words):
        raise UsageError("there is no word to search for")
    for hit in _hits(config, words, working_directory(None) if here else None, limit):
        if as_json:
            write_json(asdict(hit))
        else:
            where = f"{hit.id}@{hit.seq}  {time_text(hit.time)}  {hit.title or '-'}"
            write_text(one_line(f"{where}  {hit.snippet}"))
    return 0


def _hits(config: Config, words: tuple[str, ...], cwd: str | None, limit: int) -> list[Hit]:
    """What the index finds; where it cannot be used, one that is made for this search alone."""
    home, sessions = config.require_home(), open_storage(config)
    hits = open_index(home, sessions).search(words, cwd, limit)
    if hits is None:
        try:
            with tempfile.TemporaryDirectory(prefix="dsh-index-") as place:
                hits = open_index(home, sessions, place).search(words, cwd, limit)
        except OSError as error:
            message = f"no room for an index of the sessions: {error.strerror}"
            raise StorageError(message, hint=_HINT) from error
    if hits is None:
        raise StorageError("no index of the sessions can be made", hint=_HINT)
    return hits


COMMAND = search
