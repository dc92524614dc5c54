"""What an agent and everything below it may spend: one pool at every level, checked from the inside out.

Pure. Every agent has a pool of its own; what it spends counts in the pools of all that stand above it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dsh_actors.core.options import AgentOptions, LimitBase, Limits
from dsh_actors.core.text import JsonObject

__all__ = ["Budget"]


@dataclass(eq=False, slots=True)
class Budget:
    """``limits`` hold for the totals here; ``parent`` is the pool of the agent above, None for a root.

    ``cost`` is None once a part of it is not known. ``agents`` counts sub-agents that were started,
    whether or not they are over. ``model`` is the one whose price gives the currency.
    """

    limits: Limits
    parent: Budget | None = None
    steps: int = 0
    tool_calls: int = 0
    tokens: int = 0
    cost: float | None = 0.0
    agents: int = 0
    model: str = ""

    @staticmethod
    def of(options: AgentOptions, model: str) -> Budget:
        """The pool of a root agent; one that is resumed has spent what it had."""
        base = options.limit_base or LimitBase()
        return Budget(options.limits, cost=base.cost, agents=base.agents, model=model)

    def chain(self) -> Iterator[Budget]:
        """This pool, then those above it."""
        pool: Budget | None = self
        while pool is not None:
            yield pool
            pool = pool.parent

    def spend(self, steps: int, tool_calls: int, tokens: int) -> None:
        """Count what was used; negative numbers take back what was counted too early."""
        pool: Budget | None = self
        while pool is not None:
            pool.steps += steps
            pool.tool_calls += tool_calls
            pool.tokens += tokens
            pool = pool.parent

    def pay(self, cost: float | None) -> None:
        """Add a cost; one that is not known makes the total unknown."""
        for pool in self.chain():
            pool.cost = None if cost is None or pool.cost is None else pool.cost + cost

    def steps_reached(self) -> JsonObject | None:
        """``{"kind", "value"}`` of the limit that forbids one more step, the nearest one first."""
        pool: Budget | None = self
        while pool is not None:
            limits = pool.limits
            if limits.max_steps is not None and pool.steps >= limits.max_steps:
                return {"kind": "max_steps", "value": limits.max_steps}
            # A call beyond the limit is logged and refused, so "more than" means one was refused.
            if limits.max_tool_calls is not None and pool.tool_calls > limits.max_tool_calls:
                return {"kind": "max_tool_calls", "value": limits.max_tool_calls}
            pool = pool.parent
        return None

    def spending_reached(self, unsettled: int = 0) -> JsonObject | None:
        """As `steps_reached`, for what forbids one more request; ``unsettled`` tokens are not counted yet."""
        pool: Budget | None = self
        while pool is not None:
            limits = pool.limits
            if limits.max_tokens is not None and pool.tokens + unsettled >= limits.max_tokens:
                return {"kind": "max_tokens", "value": limits.max_tokens}
            if limits.max_cost is not None:
                if pool.cost is None:
                    # A limit that can no longer be watched is kept by stopping.
                    return {"kind": "max_cost", "value": limits.max_cost, "unknown": True}
                if pool.cost >= limits.max_cost:
                    return {"kind": "max_cost", "value": limits.max_cost}
            pool = pool.parent
        return None

    def calls_used_up(self) -> bool:
        """Whether no more tool call may start."""
        pools = self.chain()
        return any((most := p.limits.max_tool_calls) is not None and p.tool_calls >= most for p in pools)

    def reached(self) -> JsonObject | None:
        """What forbids anything more, if anything does."""
        return self.steps_reached() or self.spending_reached()

    def take_agent(self) -> JsonObject | None:
        """Count one more sub-agent, or say which limit forbids it; nothing is counted then."""
        for pool in self.chain():
            if pool.agents >= pool.limits.max_agents:
                return {"kind": "max_agents", "value": pool.limits.max_agents}
        for pool in self.chain():
            pool.agents += 1
        return None

    def give_back_agent(self) -> None:
        """The sub-agent that was counted never came to be."""
        for pool in self.chain():
            pool.agents -= 1
