"""Every error the harness raises on purpose, in one tree with stable codes.

Route on ``code`` (or the class), never on the text. ``hint`` says what the user can do.

    HarnessError
    ├── UsageError              a wrong option or argument; nothing was started
    │   ├── ConfigError         a configuration file or environment value is wrong
    │   └── ImageRefused        a file is no image, or not one that may be attached
    ├── ProviderError           a model call failed; carries the normalised failure
    │   └── CredentialError     no usable key; nothing was sent
    ├── ToolError               a tool failed; the model may read the text
    │   └── ToolDenied          a policy refused the call
    ├── SubagentError           a sub-agent cannot be started or reached
    ├── SessionError
    │   ├── SessionNotFound
    │   ├── SessionExists
    │   ├── SessionBusy         another writer holds it
    │   ├── SessionCorrupt      damage, with the place
    │   ├── SessionUnsupported  a newer format or an unknown required event
    │   ├── AttachmentError     a stored image is missing, damaged or cannot be read
    │   └── StorageError        the disk refused a write
    │       └── StorageFull
    ├── AgentNotFound           the daemon hosts no such agent
    ├── HostFull                the daemon has no room for one more live agent now
    ├── EventRefused            data that the log cannot hold without loss
    └── ProtocolError           a message or reply that the receiver cannot use
        └── ActorGone           the actor stopped or did not answer in time
"""

from __future__ import annotations

import errno

__all__ = [
    "ActorGone",
    "AgentNotFound",
    "AttachmentError",
    "ConfigError",
    "CredentialError",
    "EventRefused",
    "HarnessError",
    "HostFull",
    "ImageRefused",
    "ProtocolError",
    "ProviderError",
    "SessionBusy",
    "SessionCorrupt",
    "SessionError",
    "SessionExists",
    "SessionNotFound",
    "SessionUnsupported",
    "StorageError",
    "StorageFull",
    "SubagentError",
    "ToolDenied",
    "ToolError",
    "UsageError",
    "error_chain",
    "is_disk_full",
]


class HarnessError(Exception):
    """Root of all expected errors; ``code`` is stable, ``hint`` tells the user what to do."""

    code = "UNKNOWN"

    def __init__(self, message: str, *, code: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if code is not None:
            self.code = code


class UsageError(HarnessError):
    code = "USAGE"


class ConfigError(UsageError):
    code = "CONFIG"


class ImageRefused(UsageError):
    """``code`` says which rule of admission was broken."""

    code = "INVALID_IMAGE"


class ProviderError(HarnessError):
    """A model call failed. ``code`` is the failure's code (llm vocabulary, `core/chunks.py`)."""

    code = "UNKNOWN"


class CredentialError(ProviderError):
    code = "MISSING_CREDENTIAL"


class ToolError(HarnessError):
    """The text goes to the model as the tool's result, marked as an error."""

    code = "TOOL_FAILED"


class ToolDenied(ToolError):
    """A policy refused the call; ``rule`` names the rule and ``hint`` the option that would allow it."""

    code = "DENIED"

    def __init__(self, message: str, *, rule: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.rule = rule


class SubagentError(HarnessError):
    """``code``: DEPTH_LIMIT, AGENT_LIMIT, BUDGET_SPENT, UNSUPPORTED_CAPABILITY, NOT_RESUMABLE, UNAUTHORIZED
    or PARENT_UNAVAILABLE.
    """

    code = "PARENT_UNAVAILABLE"


class SessionError(HarnessError):
    code = "SESSION"


class SessionNotFound(SessionError):
    code = "SESSION_NOT_FOUND"


class SessionExists(SessionError):
    code = "SESSION_ALREADY_EXISTS"


class SessionBusy(SessionError):
    code = "SESSION_BUSY"


class SessionCorrupt(SessionError):
    code = "SESSION_CORRUPT"


class SessionUnsupported(SessionError):
    code = "SESSION_UNSUPPORTED"


class AttachmentError(SessionError):
    """``code``: ATTACHMENT_NOT_FOUND, ATTACHMENT_CORRUPT or ATTACHMENT_READ_FAILED."""

    code = "ATTACHMENT_READ_FAILED"


class StorageError(SessionError):
    code = "STORAGE_FAILED"


class StorageFull(StorageError):
    code = "STORAGE_FULL"


_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def is_disk_full(error: BaseException | None) -> bool:
    """Whether an error of the operating system says that there is no room: on the disk, in a quota, in a
    limit on the sizes of files.
    """
    return isinstance(error, OSError) and error.errno in _DISK_FULL


class AgentNotFound(HarnessError):
    code = "AGENT_NOT_FOUND"


class HostFull(HarnessError):
    """``retry_after_s``: seconds after which it is worth another try."""

    code = "HOST_FULL"

    def __init__(self, message: str, *, retry_after_s: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_s = retry_after_s


class EventRefused(HarnessError):
    code = "EVENT_REFUSED"


class ProtocolError(HarnessError):
    code = "PROTOCOL"


class ActorGone(ProtocolError):
    code = "ACTOR_GONE"


def error_chain(error: BaseException) -> str:
    """Render an error and its causes, outermost first, joined by ``": "``.

    A cause that its wrapper's text repeats is skipped; an empty text becomes the class name.
    """
    parts: list[str] = []
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None:
        if id(current) in seen:
            parts.append("<circular cause>")
            break
        seen.add(id(current))
        try:
            text = str(current) or type(current).__name__
        except Exception:  # a foreign __str__ may raise anything
            text = "<unrenderable value>"
        reason = getattr(current, "strerror", None)
        if not parts or (text not in parts[-1] and not (reason and str(reason) in parts[-1])):
            parts.append(text)
        current = current.__cause__
    return ": ".join(parts)
