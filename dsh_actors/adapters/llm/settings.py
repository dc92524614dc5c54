"""What a provider is built from: plain values, resolved by whoever reads the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit, urlunsplit

from dsh_actors.adapters.llm.images import ImageReader
from dsh_actors.config.addresses import is_web_address
from dsh_actors.config.profiles import PROFILES, Profile
from dsh_actors.core.options import DEFAULT_CONCURRENCY
from dsh_actors.core.retry import RetryPolicy
from dsh_actors.errors import ConfigError

__all__ = ["ModelFacts", "ProviderConfig", "endpoint", "messages_endpoint"]

_TIMES = (
    "connect_timeout_s",
    "first_event_timeout_s",
    "idle_timeout_s",
    "queue_timeout_s",
    "total_timeout_s",
)


def endpoint(base_url: str, path: str, beta_path: str = "") -> str:
    """``path`` below a base URL, whose query stays at the end. ``beta_path`` replaces a final ``/v1``."""
    parts = urlsplit(base_url)
    base = parts.path.rstrip("/")
    if beta_path and not base.endswith(beta_path):
        base = base.removesuffix("/v1") + beta_path
    return urlunsplit(parts._replace(path=base + path))


def messages_endpoint(base_url: str, path: str, query: str = "") -> str:
    """``path`` below the base URL of a Messages server, with or without a final ``/v1`` of its own."""
    parts = urlsplit(base_url)
    joined = "&".join(filter(None, (parts.query, query)))
    return urlunsplit(parts._replace(path=parts.path.rstrip("/").removesuffix("/v1") + path, query=joined))


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What is known about one model. Sizes are tokens; ``None`` is not known.

    ``default_output`` is sent as the output limit where nobody asked for another. ``efforts`` are
    the reasoning efforts it takes, empty where it does not reason. ``input_modalities`` are ``text``
    and what else it takes: ``image``.
    """

    id: str
    context_window: int | None = None
    max_output: int | None = None
    default_output: int | None = None
    efforts: tuple[str, ...] = ()
    default_effort: str | None = None
    input_modalities: tuple[str, ...] = ("text",)


@dataclass(frozen=True, slots=True)
class ProviderConfig:
    """One route to a vendor. ``name`` is the user's word for it, ``type`` the adapter's.

    ``models`` None leaves the catalogue to the adapter. With ``builtin_url`` the base URL is the
    vendor's own, so a model outside a known catalogue is refused. ``api_key_env`` is the variable
    that the key should have come from; None for a server that needs no key. ``ca_file`` holds the
    certificates that its own is checked against, None for those of the environment.

    ``headers`` are sent as they are; ``profile`` says what is peculiar about the server.
    ``read_image`` gives the bytes of images in messages; without it models read text only.
    ``max_concurrency`` is how many calls at once the gateway allows; as many connections are kept.

    Times, each of one attempt: ``connect_timeout_s`` until there is a connection, ``first_event_timeout_s``
    without any sign before the first event, ``queue_timeout_s`` of signs but no event,
    ``idle_timeout_s`` without an event after the first, ``total_timeout_s`` for everything, None for no end.
    Raises `ConfigError` for a base URL that is none.
    """

    name: str
    type: str
    base_url: str
    api_key: str | None = field(default=None, repr=False)
    api_key_env: str | None = None
    models: tuple[ModelFacts, ...] | None = None
    builtin_url: bool = False
    connect_timeout_s: float = 10.0
    first_event_timeout_s: float = 660.0
    idle_timeout_s: float = 300.0
    queue_timeout_s: float = 660.0
    total_timeout_s: float | None = None
    ca_file: str | None = None
    max_concurrency: int = DEFAULT_CONCURRENCY
    headers: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    retry_policy: RetryPolicy = field(default_factory=RetryPolicy)
    profile: Profile = PROFILES["generic"]
    read_image: ImageReader | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not is_web_address(self.base_url):
            raise ConfigError(
                f"provider {self.name}: base_url is not a web address",
                hint="it should look like https://host/v1",
            )
        for name in _TIMES:
            seconds = getattr(self, name)
            if seconds is not None and not seconds > 0:
                raise ConfigError(f"provider {self.name}: {name} must be greater than 0")
