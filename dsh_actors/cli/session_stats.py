"""`dsh session stats`: what sessions took, each and together."""

from __future__ import annotations

from collections.abc import Iterator

import click

from dsh_actors.cli.places import working_directory
from dsh_actors.cli.session_common import as_json_option, configuration, storage, write_json, write_text
from dsh_actors.core.ids import SessionId
from dsh_actors.core.pricing import PriceOf
from dsh_actors.core.stats import SessionStats, StatsFold
from dsh_actors.core.text import JsonObject
from dsh_actors.errors import EventRefused, SessionError, UsageError
from dsh_actors.ports import SessionStorage

__all__ = ["COMMAND"]


@click.command("stats", short_help="Turns, steps, time, tokens and cost.")
@click.argument("sessions", nargs=-1)
@click.option("--here", is_flag=True, help="Only sessions of the current directory.")
@as_json_option
def stats(sessions: tuple[str, ...], here: bool, as_json: bool) -> int:
    """Turns, steps, time in models and tools, tokens and cost of sessions (default: all) and their sum.

    A damaged session among all is named and left out; one that was asked for is an error.
    """
    if here and sessions:
        raise UsageError("name sessions or give --here, not both")
    config = configuration()
    stored, total, count = storage(config), SessionStats(), 0
    for name in map(SessionId, sessions) if sessions else _listed(stored, here):
        try:
            found = _stats_of(stored, name, config.price)
        except (SessionError, EventRefused) as error:
            if sessions:
                raise
            _write(name, {"error": error.message}, as_json)
            continue
        total.add(found)
        count += 1
        _write(name, found.to_json(), as_json)
    if count != 1 or not sessions:
        summary = total.to_json()
        if as_json:
            write_json({"total": {"sessions": count, **summary}})
        else:
            write_text(f"{count} sessions  {_text(summary)}")
    return 0


def _listed(stored: SessionStorage, here: bool) -> Iterator[SessionId]:
    cwd = working_directory(None) if here else None
    return (listing.id for listing in stored.list(cwd))


def _stats_of(stored: SessionStorage, session_id: SessionId, price_of: PriceOf) -> SessionStats:
    fold = StatsFold(price_of, stored.header(session_id).seed_length or 0)
    for event in stored.read(session_id):
        fold.observe(event)
    return fold.stats


def _write(name: SessionId, data: JsonObject, as_json: bool) -> None:
    if as_json:
        write_json({"id": name, **data})
    else:
        write_text(f"{name}  {data['error'] if 'error' in data else _text(data)}")


def _text(data: JsonObject) -> str:
    usage = data["usage"]
    read = usage["input"] + usage["cache_read"] + usage["cache_write"]
    cost = "-" if data["cost"] is None else f"{data['cost']:.4f} {data['currency'] or ''}".rstrip()
    parts = [
        f"{data['turns']} turns, {data['steps']} steps, {data['tool_calls']} calls",
        f"model {data['llm_ms'] / 1000:.1f} s, tools {data['tool_ms'] / 1000:.1f} s",
        f"tokens {read} in ({usage['cache_read']} cached), {usage['output']} out",
        f"cost {cost}",
    ]
    if data["ttft_steps"]:
        parts.append(f"first token {data['ttft_ms'] / data['ttft_steps'] / 1000:.2f} s")
    if data["decode_ms"]:
        parts.append(f"{data['decode_tokens'] * 1000 / data['decode_ms']:.0f} tokens/s")
    return ", ".join(parts)


COMMAND = stats
