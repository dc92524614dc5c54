"""The pool of what agents may spend, and what a log says of an agent's sub-agents."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dsh_actors.core.budget import Budget
from dsh_actors.core.children import ChildUse, fold_child, started_fact
from dsh_actors.core.chunks import Usage
from dsh_actors.core.events import Event
from dsh_actors.core.limits import LimitWatch
from dsh_actors.core.loop_guard import LoopGuard
from dsh_actors.core.options import Limits
from dsh_actors.core.outcome import Circumstances, OutcomeFold
from dsh_actors.core.pricing import Tokens
from dsh_actors.core.state import Counters


def watch_below(pool: Budget, counters: Counters, limits: Limits | None = None) -> LimitWatch:
    own = limits or Limits()
    return LimitWatch(own, counters, Budget(own, pool))


def test_agents_cannot_begin_more_steps_than_their_pool_has() -> None:
    root, counters = Budget(Limits(max_steps=3)), [Counters() for _ in range(5)]
    watches = [watch_below(root, each) for each in counters]
    claims = [w.claim_step(c, LoopGuard()) for w, c in zip(watches, counters, strict=True)]
    assert claims == [None] * 3 + [{"kind": "max_steps", "value": 3}] * 2


def test_the_last_call_that_is_allowed_ends_nothing_and_the_next_one_does() -> None:
    pool = Budget(Limits(max_tool_calls=2))
    pool.spend(0, 2, 0)
    assert pool.calls_used_up() and pool.reached() is None
    pool.spend(0, 1, 0)
    assert pool.reached() == {"kind": "max_tool_calls", "value": 2}


def test_a_step_that_was_not_begun_is_given_back() -> None:
    root, one, two = Budget(Limits(max_steps=1)), Counters(), Counters()
    first, second = watch_below(root, one), watch_below(root, two)
    assert first.claim_step(one, LoopGuard()) is None
    assert second.claim_step(two, LoopGuard()) is not None
    assert first.before_step(one, LoopGuard()) is None  # its turn ended before the step
    assert second.claim_step(two, LoopGuard()) is None


def test_the_nearest_limit_is_named_first_and_what_is_below_counts_above() -> None:
    root = Budget(Limits(max_tokens=100))
    counters = Counters()
    watch = watch_below(root, counters, Limits(max_tokens=10))
    counters.add(Usage(7, 3))
    assert watch.before_step(counters, LoopGuard()) == {"kind": "max_tokens", "value": 10}
    assert root.tokens == 10 and root.reached() is None


def test_a_cost_below_that_is_not_known_is_not_known_above() -> None:
    root = Budget(Limits(max_cost=5))
    watch = watch_below(root, Counters())
    watch.spend(2.0)
    assert root.cost == 2.0 and root.reached() is None
    watch.spend(None)
    assert root.reached() == {"kind": "max_cost", "value": 5, "unknown": True}


def test_the_number_of_agents_is_taken_from_every_pool_or_from_none() -> None:
    root = Budget(Limits(max_agents=2))
    child = Budget(Limits(max_agents=9), root)
    assert [pool.take_agent() for pool in (root, child, child)] == [
        None,
        None,
        {"kind": "max_agents", "value": 2},
    ]
    assert (root.agents, child.agents) == (2, 1)
    child.give_back_agent()
    assert (root.agents, child.agents) == (1, 0) and child.take_agent() is None


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["step", "call", "tokens", ""])), max_size=60))
def test_the_pool_is_the_sum_of_what_its_agents_count(moves: list[tuple[int, str]]) -> None:
    root = Budget(Limits())
    all_counters = [Counters(steps=3, tool_calls=2, input=5) for _ in range(3)]
    watches = [watch_below(root, each) for each in all_counters]
    for number, move in moves:
        counters, watch = all_counters[number], watches[number]
        match move:
            case "step":
                watch.claim_step(counters, LoopGuard())
                counters.steps += 1
            case "call":
                watch.before_call(counters, LoopGuard())
                counters.tool_calls += 1
            case "tokens":
                counters.add(Usage(11, 2, 3, 1))
        watch.before_retry(counters)
    assert root.steps == sum(each.steps - 3 for each in all_counters)
    assert root.tool_calls == sum(each.tool_calls - 2 for each in all_counters)
    assert root.tokens == sum(each.tokens - 5 for each in all_counters)


def test_one_shot_agents_are_forgotten_and_others_stay() -> None:
    children: dict[str, dict[str, object]] = {}
    for child, mode in (("a", "one-shot"), ("b", "continuable")):
        fold_child(children, "subagent/started", started_fact(child, "label", mode))
    assert {child: fact["open"] for child, fact in children.items()} == {"a": True, "b": True}
    for child in ("a", "b", "unknown"):
        fold_child(children, "subagent/ended", {"id": child, "reason": "completed"})
    assert children == {"b": {"label": "label", "mode": "continuable", "open": False, "reason": "completed"}}


def test_the_outcome_has_what_agents_below_used_and_were_denied() -> None:
    use = ChildUse(Tokens(input=5, output=2), None, None, ({"tool": "bash", "agent": "c"},), 3)
    fold = OutcomeFold()
    fold.apply(Event("turn/start", 0, 1, {"turn": 1}))
    fold.apply(Event("subagent/ended", 1, 1, {"id": "c", **use.to_json()}, ignorable=True))
    end = fold.end(Circumstances())
    assert end.usage["children"]["input"] == 5 and end.denied == use.denied and end.tool_errors == 3
    assert end.cost is None
    assert ChildUse.from_json(use.to_json()) == use
