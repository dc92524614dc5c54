"""`dsh models`, and what the catalogue's prices make of a run, in the real program."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsh_actors.cli import models_cmd
from dsh_actors.config import load_config
from dsh_actors.config.models import catalogue
from dsh_actors.core.chunks import Usage
from dsh_actors.errors import ProviderError
from tests.adapters.llm.llm_kit import Server
from tests.cli.dsh_process import ONE_LINE, SECRET, Dsh
from tests.model_server import C, T

USAGE = {
    "prompt_tokens": 700_000,
    "completion_tokens": 100_000,
    "prompt_cache_hit_tokens": 400_000,
    "completion_tokens_details": {"reasoning_tokens": 7},
}
COUNTED = Usage(300_000, 100_000, 400_000)
FLASH = "deepseek/deepseek-flash"


def flash_cost(began: int) -> float:
    rates = catalogue("deepseek")[0].price
    price = None if rates is None else rates.at(began)
    assert price is not None
    return price.cost(COUNTED)


# --- the list ---------------------------------------------------------------------------------


def test_the_list_needs_no_network_no_key_and_no_home(dsh: Dsh) -> None:
    env: dict[str, str | None] = dict.fromkeys(("DEEPSEEK_API_KEY", "DEEPSEEK_BASE_URL", "OPENAI_API_KEY"))
    result = dsh.call("models", env=env | {"DSH_HOME": "/nonexistent/home"})
    assert (result.code, result.err) == (0, "")
    head, *rest = result.out.splitlines()
    [first] = [line for line in rest if line.startswith("*")]
    assert " ".join(head.split()) == "MODEL CONTEXT OUTPUT IN / CACHED / OUT PEAK TAKES KEY"
    assert first.startswith("* deepseek/deepseek-flash ") and first.endswith("text, image  not set")
    assert "1,048,576  393,216  0.15 / 0.003 / 0.6 USD" in first and "0.3 / 0.006 / 1.2 USD" in first
    assert any(line.startswith("  openai/* ") for line in rest)
    assert any(line.startswith("  scripted/demo ") and line.endswith("not needed") for line in rest)
    assert dsh.server.requests() == [] and not dsh.home.exists()


def test_the_list_as_json_has_every_fact_and_which_model_is_the_default(dsh: Dsh) -> None:
    dsh.home.mkdir()
    (dsh.home / "config.toml").write_text(
        '[agent]\nmodel = "openai/chosen"\n'
        '[providers.lab]\nbase_url = "http://me:hidden-word@127.0.0.1:9/v1"\n'
        '[[providers.lab.models]]\nid = "large"\ncontext_window = 8192\ncapabilities = ["image"]\n'
        'price = { input = 2, output = 3, currency = "EUR" }\n'
    )
    result = dsh.call("models", "--json")
    rows = {row["model"]: row for row in result.events}
    assert [name for name, row in rows.items() if row["default"]] == ["openai/chosen"]
    assert rows["openai/chosen"]["context_window"] is None and rows["openai/chosen"]["price"] is None
    lab = rows["lab/large"]
    assert (lab["provider"], lab["id"], lab["key"]) == ("lab", "large", "not needed")
    assert (lab["context_window"], lab["capabilities"]) == (8192, ["image"])
    assert lab["price"] == {
        "input": 2.0,
        "output": 3.0,
        "cache_read": None,
        "cache_write": None,
        "currency": "EUR",
    }
    flash = rows[FLASH]
    assert (flash["key"], flash["max_output"], flash["default_output"]) == ("set", 393_216, 256_000)
    assert flash["price"]["peak_hours"] == ["01:00-04:00", "06:00-10:00"]
    assert flash["price"]["peak_days"] == ["mon", "tue", "wed", "thu", "fri"]
    assert "2026-10-01" in flash["price"]["except_days"]
    assert (flash["efforts"], flash["default_effort"]) == (["off", "low", "high", "max"], "high")
    assert (flash["price_as_of"], lab["price_as_of"]) == ("2026-11", None)
    assert "hidden-word" not in result.out and SECRET not in result.out


def test_one_provider_may_be_named_and_must_exist(dsh: Dsh) -> None:
    assert {row["provider"] for row in dsh.call("models", "scripted", "--json").events} == {"scripted"}
    wrong = dsh.call("models", "deepsek")
    assert wrong.code == 2 and "did you mean deepseek?" in wrong.err and ONE_LINE.match(wrong.err)


# --- asking the provider ----------------------------------------------------------------------


def test_remote_asks_the_provider_with_its_key(dsh: Dsh) -> None:
    result = dsh.call("models", "--remote", "openai", "--json")
    [row] = result.events
    assert (result.code, row["model"], row["key"], row["default"]) == (0, "openai/test", "set", False)


@pytest.fixture
def lab(dsh: Dsh) -> Iterator[Server]:
    """A provider named ``lab`` with a word for each path of its base URL."""
    answers = {
        b"list": b'{"data": [{"id": "one", "max_model_len": 4096}, {"id": "odd\\u001b[2J"}]}',
        b"html": b"<html>hello</html>",
    }

    def handle(connection: object, request: bytes) -> None:
        path = request.split(b" ")[1].split(b"/")[1]
        body = answers.get(path, b'{"error": {"message": "no such key: %b"}}' % SECRET.encode())
        status = b"200 OK" if path in answers else b"401 Unauthorized"
        connection.sendall(b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body))

    with Server(handle) as server:
        dsh.home.mkdir()
        (dsh.home / "config.toml").write_text(
            "".join(
                f'[providers.{name}]\nbase_url = "http://me:hidden-word@127.0.0.1:{port}/{name}"\n'
                'api_key_env = "OPENAI_API_KEY"\n'
                f'[[providers.{name}.models]]\nid = "one"\nmax_output = 7\n'
                for name, port in (
                    ("list", server.port),
                    ("html", server.port),
                    ("key", server.port),
                    ("gone", 9),
                )
            )
        )
        yield server


def test_what_the_provider_says_is_completed_by_what_is_known(dsh: Dsh, lab: Server) -> None:
    rows = dsh.call("models", "--remote", "list", "--json").events
    assert [(r["id"], r["context_window"], r["max_output"]) for r in rows] == [
        ("one", 4096, 7),
        ("odd\x1b[2J", None, None),
    ]
    shown = dsh.call("models", "--remote", "list").out
    assert "\x1b" not in shown and "list/odd\\x1b[2J" in shown
    head, *lines = shown.splitlines()
    assert {line.rindex("  ") + 2 for line in lines} == {head.index("KEY")}


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("html", 1, "html: GET /models: the answer is not a list of models"),
        ("key", 3, "no such key"),
        ("gone", 1, "cannot connect"),
        ("scripted", 2, "has no list of models"),
    ],
)
def test_a_provider_that_gives_no_list_is_one_line_and_a_code(
    dsh: Dsh, lab: Server, name: str, code: int, words: str
) -> None:
    result = dsh.call("models", "--remote", name)
    assert (result.code, result.out) == (code, "")
    assert ONE_LINE.match(result.err) and words in result.err
    assert SECRET not in result.err and "hidden-word" not in result.err


def test_a_list_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def handle(connection: object, request: bytes) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n[")

    monkeypatch.setattr(models_cmd, "_TOTAL_S", 0.2)
    with Server(handle) as server:
        (tmp_path / "config.toml").write_text(f'[providers.slow]\nbase_url = "{server.url}"\n')
        config = load_config(env={"DSH_HOME": str(tmp_path)}, cwd=str(tmp_path))
        with pytest.raises(ProviderError, match="no whole answer in time") as caught:
            models_cmd._remote(config, "slow")
    assert caught.value.code == "TIMEOUT"


def test_remote_without_a_key_is_a_matter_of_credentials(dsh: Dsh) -> None:
    result = dsh.call("models", "--remote", env={"DEEPSEEK_API_KEY": None})
    assert result.code == 3 and "set DEEPSEEK_API_KEY" in result.err


# --- prices in runs ---------------------------------------------------------------------------


def test_a_run_is_paid_by_the_catalogue_and_so_is_the_session(dsh: Dsh) -> None:
    dsh.server.script(C("glob", {"pattern": "*"}, usage=USAGE), T("done", usage=USAGE))
    first = dsh.call("run", "-m", FLASH, "--json", "--session-id", "s", "hello")
    assert first.end["usage"] == {
        "own": {
            "input": 600_000,
            "cache_read": 800_000,
            "cache_write": 0,
            "output": 200_000,
            "reasoning": 14,
        },
        "children": dict.fromkeys(("input", "cache_read", "cache_write", "output", "reasoning"), 0),
    }
    began = [event["time"] for event in first.of("request/digest")]
    assert first.end["cost"] == pytest.approx(sum(map(flash_cost, began)))
    [header] = first.of("request/header")
    assert header["data"]["header"]["config"]["maxTokens"] == 256_000
    assert header["data"]["header"]["adapterDefaults"] == {"maxTokens": True, "reasoningEffort": True}
    assert dsh.server.requests()[0].json["max_tokens"] == 256_000

    dsh.server.script(T("more", usage=USAGE))
    second = dsh.call("run", "--resume", "s", "--json", "again")
    assert second.end["cost"] == pytest.approx(flash_cost(second.of("request/digest")[0]["time"]))
    dsh.server.script(T("else", usage=USAGE))
    dsh.call("run", "--fork", "s", "--session-id", "f", "another way")
    whole, fork, total = dsh.call("session", "stats", "s", "f", "--json").events
    assert whole["cost"] == pytest.approx(first.end["cost"] + second.end["cost"])
    # A fork took what it took itself: the copied part is its parent's.
    assert (fork["usage"]["output"], fork["turns"]) == (100_000, 1)
    assert total["total"]["cost"] == pytest.approx(whole["cost"] + fork["cost"])


def test_a_limit_on_the_cost_works_with_the_catalogue(dsh: Dsh) -> None:
    dsh.server.script(*[C("glob", {"pattern": "*"}, usage=USAGE)] * 3, T("done"))
    cost = flash_cost(0)
    result = dsh.call("run", "-m", FLASH, "--json", "--max-cost", str(cost * 0.9), "hello")
    assert (result.code, result.end["reason"], result.end["steps"]) == (4, "max_cost", 1)
    assert len(dsh.server.requests()) == 1


def test_a_full_window_gets_a_smaller_output_limit_and_the_log_still_gives_every_request(dsh: Dsh) -> None:
    full = {"prompt_tokens": 900_000, "completion_tokens": 10}
    dsh.server.script(C("glob", {"pattern": "*"}, usage=full), T("done", usage=full))
    assert dsh.call("run", "-m", FLASH, "--session-id", "s", "hello").code == 0
    dsh.server.extend(T("again", usage=full))
    # A new process finds the count in the log.
    assert dsh.call("run", "--resume", "s", "more").code == 0
    sent = [request.json["max_tokens"] for request in dsh.server.requests()]
    assert sent == [256_000, 128_000, 128_000]
    verified = dsh.call("session", "verify", "--requests", "s")
    assert verified.code == 0, verified.err


def test_where_the_price_is_not_known_the_cost_is_null_and_a_limit_on_it_refused(dsh: Dsh) -> None:
    dsh.server.script(T("done", usage=USAGE))
    result = dsh.call("run", "-m", "deepseek/of-our-own", "--json", "hello")
    assert (result.code, result.end["cost"]) == (0, None) and result.end["usage"]["own"]["output"] == 100_000
    for model in ("deepseek/of-our-own", "openai/test"):
        refused = dsh.call("run", "-m", model, "--max-cost", "1", "hello")
        assert refused.code == 2 and "price" in refused.err and model in refused.err
    assert len(dsh.server.requests()) == 1


def test_progress_shows_how_full_the_context_is(dsh: Dsh) -> None:
    dsh.server.script(C("bash", {"command": "echo waiting; sleep 0.6"}, usage=USAGE), T("done"))
    result = dsh.call("run", "-m", FLASH, "--progress", "hello")
    assert result.code == 0 and "| context 76% |" in result.err


def test_the_catalogue_is_shipped_with_the_package() -> None:
    root = Path(__file__).resolve().parents[2]
    assert '"dsh_actors.config" = ["models.json"]' in (root / "pyproject.toml").read_text()
    assert json.loads((root / "dsh_actors" / "config" / "models.json").read_text())["deepseek"]
