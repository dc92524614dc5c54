"""Scopes: where plugins register, and how far a registration reaches.

A scope is the global one, a preset, or one agent; each has at most one parent. What is registered
on a scope is seen by it and by every scope below it, the nearest registration of a name wins, and
closing the scope undoes everything registered through it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from dsh_actors.core.text import JsonObject
from dsh_actors.errors import UsageError

__all__ = [
    "INTERCEPTION_POINTS",
    "LISTENING_POINTS",
    "NOTIFICATIONS",
    "KeptPrompt",
    "Scope",
    "Section",
    "run_chain",
]

INTERCEPTION_POINTS = frozenset(
    {
        "agent/pre-step",
        "agent/request",
        "agent/request-error",
        "llm/stream",
        "tools/pre-execute",
        "tools/execute",
        "tools/post-execute",
        "telemetry/redact",
    }
)
"""Chains: each interceptor is called as ``f(payload, next)``; not calling ``next`` ends the chain."""

LISTENING_POINTS = frozenset({"agent/turn-stopping", "agent/session-start"})
"""All listeners are called in order as ``f(payload)``; what they return is not used."""

NOTIFICATIONS = frozenset(
    {
        "agent/created",
        "agent/disposed",
        "agent/status",
        "agent/error",
        "agent/inbox/inserted",
        "agent/inbox/claimed",
        "agent/inbox/discarded",
        "session/event",
        "tools/result",
    }
)
"""Observers are called as ``f(payload)`` where it happened; they must be quick and cannot change anything."""

Undo = Callable[[], None]
Handler = Callable[..., Any]


class NamedTool(Protocol):
    @property
    def spec(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the system prompt (or of the context snapshot). ``text`` may be computed; it is quick."""

    name: str
    order: float
    text: str | Callable[[], str]

    def render(self) -> str:
        return self.text if isinstance(self.text, str) else self.text()


@dataclass(eq=False, slots=True)
class KeptPrompt:
    """The system prompt that a session was begun with, whole. It stays while nothing changes here."""

    text: str
    _composed: str | None = None

    def or_changed(self, composed: str) -> str:
        """The kept text, until the registrations come to something else than when first asked."""
        if self._composed is None:
            self._composed = composed
        return self.text if composed == self._composed else composed


@dataclass(eq=False, slots=True)
class Scope:
    """One layer of registrations."""

    kind: str
    parent: Scope | None = None
    handlers: dict[str, list[Handler]] = field(default_factory=dict)
    guards: list[Handler] = field(default_factory=list)
    tools: dict[str, NamedTool] = field(default_factory=dict)
    sections: dict[str, Section] = field(default_factory=dict)
    contexts: dict[str, Section] = field(default_factory=dict)
    variables: dict[str, str | None] = field(default_factory=dict)
    restrictions: list[tuple[frozenset[str] | None, frozenset[str]]] = field(default_factory=list)
    revision: int = 0
    closed: bool = False
    kept_prompt: KeptPrompt | None = None
    """For a resumed session: what stands in the place of the sections."""
    _undos: dict[int, Undo] = field(default_factory=dict)
    _registrations: int = 0
    _views: dict[str, Any] = field(default_factory=dict)
    _views_of: int = -1

    # --- registering -------------------------------------------------------------------------

    def intercept(self, point: str, interceptor: Handler, *, prepend: bool = False) -> Undo:
        """Join a chain; ``prepend`` puts the interceptor outermost in this scope."""
        return self._handle(point, INTERCEPTION_POINTS, interceptor, prepend=prepend)

    def listen(self, point: str, listener: Handler) -> Undo:
        return self._handle(point, LISTENING_POINTS, listener)

    def observe(self, kind: str, observer: Handler) -> Undo:
        return self._handle(kind, NOTIFICATIONS, observer)

    def guard(self, guard: Handler) -> Undo:
        """``guard(call)`` returns a reason to deny, or None to abstain. No guard can allow."""
        return self._append(self.guards, guard)

    def tool(self, tool: NamedTool) -> Undo:
        return self._name(self.tools, tool.spec.name, tool, "tool")

    def section(self, name: str, order: float, text: str | Callable[[], str]) -> Undo:
        """Add a part of the system prompt. ``{{name}}`` in it stands for a variable."""
        return self._name(self.sections, name, Section(name, order, text), "section")

    def context(self, name: str, order: float, text: str | Callable[[], str]) -> Undo:
        """Add a fact of the moment. The model is told when the snapshot of all of them changed."""
        return self._name(self.contexts, name, Section(name, order, text), "context")

    def variable(self, name: str, value: str | None) -> Undo:
        return self._name(self.variables, name, value, "variable")

    def restrict(self, allow: frozenset[str] | None = None, deny: frozenset[str] = frozenset()) -> Undo:
        """Hide inherited tools: all but ``allow``, and those in ``deny``. Raises `UsageError`."""
        inherited = self.parent.visible_tools() if self.parent else {}
        unknown = sorted(((allow or frozenset()) | deny) - inherited.keys())
        if unknown:
            raise UsageError(
                f"unknown tool {unknown[0]!r}", hint=f"tools are: {', '.join(sorted(inherited))}"
            )
        return self._append(self.restrictions, (allow, deny))

    def close(self) -> None:
        """Undo every registration, last first. Closing twice is closing once."""
        self.closed = True
        while self._undos:
            self._undos[next(reversed(self._undos))]()
        self._views, self._views_of = {}, -1  # they hold what was registered, and that this scope

    def _handle(self, point: str, known: frozenset[str], handler: Handler, *, prepend: bool = False) -> Undo:
        if point not in known:
            raise UsageError(f"unknown extension point {point!r}", hint=f"known: {', '.join(sorted(known))}")
        handlers = self.handlers.setdefault(point, [])
        return self._append(handlers, handler, 0 if prepend else len(handlers))

    def _append(self, items: list[Any], item: Any, position: int | None = None) -> Undo:
        items.insert(len(items) if position is None else position, item)
        return self._registered(_Registration(self, items, None, item))

    def _name(self, table: dict[str, Any], name: str, value: Any, what: str) -> Undo:
        if name in table:
            raise UsageError(f"the {what} {name!r} is already registered on this {self.kind} scope")
        table[name] = value
        return self._registered(_Registration(self, table, name, value))

    def _registered(self, registration: _Registration) -> Undo:
        if self.closed:
            registration.remove()
            raise UsageError(f"this {self.kind} scope is closed")
        self.revision += 1
        self._registrations += 1
        registration.number = self._registrations
        self._undos[self._registrations] = registration
        return registration

    # --- reading -----------------------------------------------------------------------------

    def chain(self) -> Iterator[Scope]:
        """This scope, then its parent, up to the global one."""
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.parent

    def total_revision(self) -> int:
        """Changes whenever anything visible from here may have changed."""
        total, scope = self.revision, self.parent
        while scope is not None:
            total, scope = total + scope.revision, scope.parent
        return total

    def handlers_of(self, point: str) -> list[Handler]:
        """Outermost first: the global scope's, then those nearer to the agent. Not to be changed."""
        views = self._fresh_views()
        found: list[Handler] | None = views.get(point)
        if found is None:
            layers = [scope.handlers[point] for scope in self.chain() if scope.handlers.get(point)]
            found = views[point] = [handler for layer in reversed(layers) for handler in layer]
        return found

    def _fresh_views(self) -> dict[str, Any]:
        """What was worked out since the last registration: asked for at every event, changed hardly ever."""
        revision = self.total_revision()
        if revision != self._views_of:
            self._views, self._views_of = {}, revision
        return self._views

    def guards_of(self) -> list[Handler]:
        return [guard for scope in reversed(list(self.chain())) for guard in scope.guards]

    def visible_tools(self) -> dict[str, NamedTool]:
        """Tools by name. Restrictions hide inherited tools, never a scope's own. Not to be changed."""
        views = self._fresh_views()
        if "visible tools" not in views:
            views["visible tools"] = self._visible_tools()
        visible: dict[str, NamedTool] = views["visible tools"]
        return visible

    def _visible_tools(self) -> dict[str, NamedTool]:
        inherited = self.parent.visible_tools() if self.parent else {}
        for allow, deny in self.restrictions:
            inherited = {
                n: t for n, t in inherited.items() if (allow is None or n in allow) and n not in deny
            }
        return inherited | self.tools

    def named(self, table: str) -> dict[str, Any]:
        """The effective entries of ``sections``, ``contexts`` or ``variables``: the nearest wins."""
        merged: dict[str, Any] = {}
        for scope in reversed(list(self.chain())):
            merged.update(getattr(scope, table))
        return merged


class _Registration:
    """One thing that is registered; calling it takes the thing back. Every agent has some: it is small."""

    __slots__ = ("entry", "name", "number", "place", "scope")

    def __init__(
        self, scope: Scope, place: list[Any] | dict[str, Any], name: str | None, entry: object
    ) -> None:
        self.scope, self.place, self.name, self.entry = scope, place, name, entry
        self.number = 0

    def __call__(self) -> None:
        if self.scope._undos.pop(self.number, None) is not None:
            self.scope.revision += 1
            self.remove()

    def remove(self) -> None:
        place = self.place
        if isinstance(place, dict):
            if self.name is not None and place.get(self.name) is self.entry:
                del place[self.name]
            return
        for index, present in enumerate(place):
            if present is self.entry:
                del place[index]
                return


def run_chain(handlers: list[Handler], payload: JsonObject, default: Callable[[], Any]) -> Any:
    """Run an interceptor chain, outermost first, down to ``default``."""

    def call(index: int) -> Any:
        if index == len(handlers):
            return default()
        return handlers[index](payload, lambda: call(index + 1))

    return call(0)
