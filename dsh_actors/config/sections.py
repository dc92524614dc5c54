"""The sections of the configuration as frozen values. Names and defaults of keys are in `keys`."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["AgentConfig", "ApprovalConfig", "DaemonConfig", "ModelConfig", "SessionConfig", "ToolsConfig"]


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """``model`` is ``PROVIDER/MODEL``; None leaves a value to the provider."""

    model: str
    max_output: int | None
    reasoning: str | None
    preset: str | None


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """How a model request is watched and repeated. Times are seconds; None is no end."""

    connect_timeout_s: float
    first_event_timeout_s: float
    queue_timeout_s: float
    idle_timeout_s: float
    total_timeout_s: float | None
    max_retries: int


@dataclass(frozen=True, slots=True)
class ToolsConfig:
    max_parallel: int
    output_limit_bytes: int


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """``backend`` is segments or sqlite. A checkpoint is taken after ``checkpoint_events`` when a turn ends,
    and after ``checkpoint_max_events`` within one. ``title`` says where titles come from, ``title_model``
    (``PROVIDER/MODEL``) which model writes them.
    """

    backend: str
    write_window_ms: int
    checkpoint_events: int
    checkpoint_max_events: int
    title: str
    title_model: str | None
    segment_bytes: int
    segment_events: int


@dataclass(frozen=True, slots=True)
class ApprovalConfig:
    """``policy`` is workspace, read-only, all, or the path of a rule file."""

    policy: str
    sandbox: str
    fail_on_denied: bool


@dataclass(frozen=True, slots=True)
class DaemonConfig:
    """``socket`` None is the one in DSH_HOME, ``listen`` None no TCP. Times are seconds.

    ``restart`` is resume or sleep; ``event_queue`` counts events.
    """

    socket: str | None
    listen: str | None
    approval_timeout_s: float
    max_live: int
    idle_after_s: float
    restart: str
    event_queue: int
