"""The surface: the ordered events that the model sees now, and the messages derived from them.

Appending costs what it adds. A replacement puts one node in the place of a range; the log keeps
what was replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dsh_actors.core.events import SURFACE_TYPES, Event, Replace
from dsh_actors.core.messages import Message, ModelSource, ToolResultBlock, ToolSource
from dsh_actors.core.text import JsonObject
from dsh_actors.errors import EventRefused

__all__ = ["Surface", "message_of"]


class Surface:
    """The fold of all surface events. A refused event changes nothing.

    Its nodes are the events without their citations: a reply cites every chunk it was made from, and
    the log has that.
    """

    def __init__(self) -> None:
        self._nodes: list[Event] = []
        self._messages: list[Message] = []
        self.replace_generation = 0

    @staticmethod
    def restore(nodes: Sequence[Event], replace_generation: int) -> Surface:
        """The surface that had these ``nodes``. Raises `EventRefused` for what cannot be one."""
        surface = Surface()
        for node in nodes:
            if node.type not in SURFACE_TYPES or node.surface_op is None:
                raise EventRefused(f"event {node.seq}: {node.type} cannot be on the surface")
            message = message_of(node)
            surface._nodes.append(_node(node))
            if message.content:
                surface._messages.append(message)
        surface.replace_generation = replace_generation
        return surface

    @property
    def nodes(self) -> Sequence[Event]:
        return tuple(self._nodes)

    def messages(self) -> list[Message]:
        """What a request carries: a fresh list of shared, immutable messages."""
        return list(self._messages)

    def apply(self, event: Event) -> None:
        """Raises `EventRefused` where a rule of the surface is broken."""
        if event.type not in SURFACE_TYPES:
            if event.surface_op is not None or event.source_event_seqs is not None:
                raise EventRefused(f"event {event.seq}: {event.type} cannot be on the surface")
            return
        if event.surface_op is None:
            raise EventRefused(f"event {event.seq}: {event.type} needs a surfaceOp")
        _check_sources(event)
        message = message_of(event)
        if isinstance(event.surface_op, Replace):
            self._replace(event, event.surface_op)
            return
        self._nodes.append(_node(event))
        if message.content:
            self._messages.append(message)

    def _replace(self, event: Event, op: Replace) -> None:
        positions = {node.seq: index for index, node in enumerate(self._nodes)}
        first, last = positions.get(op.start), positions.get(op.end)
        if first is None or last is None or first > last:
            raise EventRefused(f"event {event.seq}: replaces a range that is not on the surface")
        shadowed = self._nodes[first : last + 1]
        missing = {node.seq for node in shadowed} - set(event.source_event_seqs or ())
        if missing:
            raise EventRefused(f"event {event.seq}: does not cite the replaced events {sorted(missing)}")
        if event.type == "tool/result":
            _check_pruned_result(event, shadowed)
        self._nodes[first : last + 1] = [_node(event)]
        self.replace_generation += 1
        derived = map(message_of, self._nodes)
        self._messages = [message for message in derived if message.content]


def _node(event: Event) -> Event:
    return event if event.source_event_seqs is None else replace(event, source_event_seqs=None)


def message_of(event: Event) -> Message:
    """The message of a surface event, checked for the shape its type demands. Raises `EventRefused`."""
    data = event.data
    try:
        message = Message.from_json(data if event.type == "user/message" else data["message"])
    except KeyError as error:
        raise EventRefused(f"event {event.seq}: {event.type} without a message") from error
    role = "assistant" if event.type == "assistant/message" else "user"
    if message.role != role:
        raise EventRefused(f"event {event.seq}: {event.type} with role {message.role!r}")
    match event.type:
        case "assistant/message" if not isinstance(message.source, ModelSource):
            raise EventRefused(f"event {event.seq}: an assistant message must come from a model")
        case "tool/result":
            block = message.content[0] if len(message.content) == 1 else None
            if not (
                isinstance(block, ToolResultBlock)
                and isinstance(message.source, ToolSource)
                and message.source.call_id == block.tool_call_id
            ):
                raise EventRefused(f"event {event.seq}: not a single tool result of its own call")
    return message


def _check_sources(event: Event) -> None:
    sources = event.source_event_seqs
    if sources is None:
        return
    if not sources and event.type != "assistant/message":
        raise EventRefused(f"event {event.seq}: sourceEventSeqs may be empty on assistant/message only")
    if len(set(sources)) != len(sources) or any(not 0 <= seq < event.seq for seq in sources):
        raise EventRefused(f"event {event.seq}: sourceEventSeqs must be distinct earlier events")


def _check_pruned_result(event: Event, shadowed: Sequence[Event]) -> None:
    if len(shadowed) != 1 or shadowed[0].type != "tool/result":
        raise EventRefused(f"event {event.seq}: a tool result replaces exactly one tool result")
    if _without_content(event.data) != _without_content(shadowed[0].data):
        raise EventRefused(f"event {event.seq}: only the content of a tool result may be replaced")


def _without_content(data: JsonObject) -> JsonObject:
    message = data["message"]
    block = {key: value for key, value in message["content"][0].items() if key != "content"}
    return data | {"message": message | {"content": [block]}}
