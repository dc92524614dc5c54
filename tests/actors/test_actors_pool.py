"""The tool pool by itself: every call gets one answer, and that answer can be logged."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from dsh_actors.actors import protocol as p
from dsh_actors.actors import tool_pool
from dsh_actors.actors.tool_pool import RunningCalls, ToolPoolActor
from dsh_actors.core import turn_io as io
from dsh_actors.core.messages import ImageBlock, ImageRef, Message, TextBlock, UserSource, user_message
from dsh_actors.core.redaction import Redactor
from dsh_actors.errors import ToolDenied
from dsh_actors.ports import ToolContext, ToolOutput, ToolSpec
from dsh_actors.runtime.actor import start_actor
from dsh_actors.runtime.tasks import Cancelled, Slots
from tests.image_samples import block, png

DEADLINE_S = 10.0
OBJECT = {"type": "object"}
OWNER = p.Owner("s", 1)


class ToolDouble:
    """Does what the test says; ``began`` hears the context of each call."""

    def __init__(self, work: Callable[[Any], Any], **spec: Any) -> None:
        self.spec = ToolSpec("t", "x", spec.pop("parameters", OBJECT), **spec)
        self.began: queue.SimpleQueue[ToolContext] = queue.SimpleQueue()
        self._work = work

    def is_parallel(self, arguments) -> bool:
        return True

    def execute(self, arguments, context) -> Any:
        self.began.put(context)
        return self._work(context)


class Pool:
    """The actor under test, and what it replied."""

    def __init__(self, slots: int = 4, secrets: dict[str, str] | None = None) -> None:
        self.running: RunningCalls = {}
        self.replies: queue.SimpleQueue[io.ToolRan] = queue.SimpleQueue()
        self.timeout_s = 60.0
        self.ref = start_actor(
            ToolPoolActor(
                name="tool_pool",
                parent=None,
                generation=0,
                slots=Slots(slots),
                redactor=Redactor(secrets or {}),
                running=self.running,
            )
        )

    def context(self, call_id, cancel, tool) -> ToolContext:
        processes: Any = None
        return ToolContext(
            "s", call_id, "/", (), {}, cancel, self.timeout_s, 1_000, processes, lambda argv, cwd: argv
        )

    def run(self, tool, ticket=1, owner=OWNER, arguments=None, interceptors=()) -> None:
        call = io.Call("c", "t", {} if arguments is None else arguments)
        self.ref.tell(
            p.RunToolCall(owner, ticket, 0, call, tool, self.context, interceptors, self.replies.put)
        )

    def cancel(self, ticket=1, owner=OWNER) -> None:
        self.ref.tell(p.CancelToolCall(owner, ticket, {"kind": "user"}))

    def result(self) -> io.ToolResult:
        return self.replies.get(timeout=DEADLINE_S).result


@pytest.fixture
def pools() -> Iterator[Callable[..., Pool]]:
    made: list[Pool] = []

    def make(**fields: Any) -> Pool:
        made.append(Pool(**fields))
        return made[-1]

    yield make
    for pool in made:
        pool.ref.stop(timeout=DEADLINE_S)
        assert pool.running == {}
        assert pool.replies.empty()


def deep() -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(20_000):
        value = {"a": value}
    return value


def endless() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["a"] = [value]
    return value


@pytest.mark.parametrize(
    "output",
    [
        ToolOutput("x", contexts=("hello",)),  # type: ignore[arg-type]
        ToolOutput("x", contexts=[user_message("m", "x")]),  # type: ignore[arg-type]
        ToolOutput("x", contexts=(Message("m", "assistant", (TextBlock("x"),), UserSource()),)),
        ToolOutput("x", events=(("todo/write",),)),  # type: ignore[arg-type]
        ToolOutput("x", events=(("todo/write", {}),)),
        ToolOutput("x", events=(("turn/end", {"turn": 1}),)),
        ToolOutput("x", events=None),  # type: ignore[arg-type]
        ToolOutput("x", meta=deep()),
        ToolOutput("x", meta=endless()),
        ToolOutput("x", events=(("my-plugin/fact", endless()),)),
        ToolOutput("x", meta={"a": float("nan")}),
        ToolOutput("x", meta=[1]),  # type: ignore[arg-type]
        ToolOutput("x", is_error=True, code=7),  # type: ignore[arg-type]
        ToolOutput("x", is_error="yes"),  # type: ignore[arg-type]
        ToolOutput("x", images=("a.png",)),  # type: ignore[arg-type]
        ToolOutput("x", images=(TextBlock("x"),)),  # type: ignore[arg-type]
        ToolOutput("x", images=(ImageBlock(ImageRef("sha256:1", "image/png", 1, 1, 1)),)),
    ],
    ids=range(17),
)
def test_an_answer_that_cannot_be_logged_is_an_error_for_the_model(pools, output):
    pool = pools()
    pool.run(ToolDouble(lambda context: output))
    result = pool.result()
    assert (result.is_error, result.code, result.contexts, result.events) == (
        True,
        "INVALID_TOOL_OUTPUT",
        (),
        (),
    )


def test_images_of_an_answer_come_through_with_their_names_redacted(pools):
    image = block(png(), "secret-token.png")
    pool = pools(secrets={"KEY": "secret-token"})
    pool.run(ToolDouble(lambda context: ToolOutput("x", images=(image,))))
    (shown,) = pool.result().images
    assert shown.attachment == replace(image.attachment, name="[redacted:KEY].png")


def test_an_answer_that_is_none_is_an_error_for_the_model(pools):
    pool = pools()
    pool.run(ToolDouble(lambda context: None))
    assert pool.result().code == "INVALID_TOOL_OUTPUT"


def test_a_refusal_with_words_that_cannot_be_logged_is_still_answered(pools):
    def refuse(context):
        raise ToolDenied("no", rule=object())  # type: ignore[arg-type]

    pool = pools()
    pool.run(ToolDouble(refuse))
    assert pool.result().code == "INVALID_TOOL_OUTPUT"


def test_half_a_surrogate_pair_becomes_a_replacement_character(pools):
    pool = pools()
    pool.run(ToolDouble(lambda context: ToolOutput("a\ud800", meta={"b": "\ud800"})))
    result = pool.result()
    assert (result.text, result.meta) == ("a\ufffd", {"b": "\ufffd"})


def test_no_secret_leaves_the_pool(pools):
    pool = pools(secrets={"KEY": "sk-0123456789abcdef"})
    pool.run(
        ToolDouble(
            lambda context: ToolOutput(
                "key sk-0123456789abcdef",
                meta={"k": "sk-0123456789abcdef"},
                events=(("run/note", {"k": "sk-0123456789abcdef"}),),
            )
        )
    )
    assert "sk-0123456789abcdef" not in repr(pool.result())

    def fail(context):
        raise RuntimeError("failed with sk-0123456789abcdef")

    pool.run(ToolDouble(fail))
    assert "sk-0123456789abcdef" not in pool.result().text


def test_arguments_that_do_not_fit_the_schema_never_reach_the_tool(pools):
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    tool = ToolDouble(lambda context: ToolOutput("ran"), parameters=schema)
    pool = pools()
    pool.run(tool, arguments={"n": "three"})
    result = pool.result()
    assert result.code == "INVALID_ARGS" and tool.began.empty()
    pool.run(tool, arguments={"n": 3})
    assert pool.result().text == "ran"


def test_output_far_beyond_the_limit_is_cut(pools):
    pool = pools()
    pool.run(ToolDouble(lambda context: ToolOutput("x" * 50_000)))
    assert len(pool.result().text) < 2_100


def test_interceptors_stand_around_the_tool(pools):
    def around(payload, following):
        assert payload["session"] == "s"
        return ToolOutput(f"<{following().text}>")

    pool = pools()
    pool.run(ToolDouble(lambda context: ToolOutput("in")), interceptors=(around,))
    assert pool.result().text == "<in>"


def wait_for_cancel(context) -> ToolOutput:
    cancelled: queue.SimpleQueue[None] = queue.SimpleQueue()
    undo = context.cancel.on_cancel(lambda: cancelled.put(None))
    try:
        cancelled.get(timeout=DEADLINE_S)
    finally:
        undo()
    return ToolOutput("was told to stop")


def test_a_call_that_is_cancelled_before_it_begins_had_no_effect(pools):
    tool = ToolDouble(wait_for_cancel)
    pool = pools()
    pool.run(tool)
    pool.cancel()
    assert pool.result().code == "ABORTED_BEFORE_DISPATCH"
    assert tool.began.empty()


def test_a_call_that_is_cancelled_while_it_waits_for_a_slot_had_no_effect(pools):
    pool, first, second = pools(slots=1), ToolDouble(wait_for_cancel), ToolDouble(wait_for_cancel)
    pool.run(first, 1)
    first.began.get(timeout=DEADLINE_S)
    pool.run(second, 2)
    pool.cancel(2)
    assert pool.result().code == "ABORTED_BEFORE_DISPATCH"
    pool.cancel(1)
    assert pool.result().text == "was told to stop"
    assert second.began.empty()


def test_a_tool_that_gives_up_when_cancelled_may_have_had_an_effect(pools):
    def give_up(context):
        wait_for_cancel(context)
        raise Cancelled(context.cancel.reason)

    tool = ToolDouble(give_up)
    pool = pools()
    pool.run(tool)
    tool.began.get(timeout=DEADLINE_S)
    pool.cancel()
    assert pool.result().code == "ABORTED"


def test_a_cancelled_call_that_does_not_stop_is_given_up(pools, monkeypatch):
    monkeypatch.setattr(tool_pool, "CANCEL_GRACE_S", 0.05)
    never: queue.SimpleQueue[None] = queue.SimpleQueue()
    tool = ToolDouble(lambda context: never.get(timeout=DEADLINE_S))
    pool = pools()
    pool.run(tool)
    tool.began.get(timeout=DEADLINE_S)
    pool.cancel()
    result = pool.result()
    assert result.code == "ABORTED" and "unknown" in result.text


def test_a_tool_that_overstays_its_timeout_is_given_up(pools, monkeypatch):
    monkeypatch.setattr(tool_pool, "TIMEOUT_GRACE_S", 0.02)
    never: queue.SimpleQueue[None] = queue.SimpleQueue()
    pool = pools()
    pool.timeout_s = 0.03
    pool.run(ToolDouble(lambda context: never.get(timeout=DEADLINE_S)))
    assert pool.result().code == "TOOL_TIMEOUT"


def test_the_end_of_an_earlier_life_leaves_the_calls_of_the_next_alone(pools):
    hold: queue.SimpleQueue[ToolOutput] = queue.SimpleQueue()
    old, new = ToolDouble(lambda context: hold.get(timeout=DEADLINE_S)), ToolDouble(wait_for_cancel)
    pool = pools()
    pool.run(old, owner=p.Owner("s", 1))
    pool.run(new, owner=p.Owner("s", 2))
    old.began.get(timeout=DEADLINE_S)
    new.began.get(timeout=DEADLINE_S)
    hold.put(ToolOutput("the old one"))
    assert pool.result().text == "the old one"
    pool.cancel(owner=p.Owner("s", 2))
    assert pool.result().text == "was told to stop"


def test_the_end_of_a_call_forgets_no_other_under_the_same_key(pools):
    hold: queue.SimpleQueue[ToolOutput] = queue.SimpleQueue()
    old, new = ToolDouble(lambda context: hold.get(timeout=DEADLINE_S)), ToolDouble(wait_for_cancel)
    pool = pools()
    pool.run(old)
    old.began.get(timeout=DEADLINE_S)
    pool.run(new)
    new.began.get(timeout=DEADLINE_S)
    hold.put(ToolOutput("the old one"))
    assert pool.result().text == "the old one"
    pool.cancel()
    assert pool.result().text == "was told to stop"


def test_a_call_that_only_waits_keeps_no_other_from_running(pools):
    pool, go = pools(slots=1), queue.SimpleQueue()
    waiting = ToolDouble(lambda context: ToolOutput(go.get()), holds_slot=False)
    for ticket in range(3):
        pool.run(waiting, ticket=ticket)
        waiting.began.get(timeout=DEADLINE_S)
    pool.run(ToolDouble(lambda context: ToolOutput("ran")), ticket=9)
    assert pool.result().text == "ran"
    for _ in range(3):
        go.put("waited")
        assert pool.result().text == "waited"
