"""What a client of the daemon raises: the errors of the API as errors of this program, by their codes."""

from __future__ import annotations

import http

import requests
import urllib3

from dsh_actors import errors
from dsh_actors.core.text import JsonObject
from dsh_actors.errors import CredentialError, HarnessError, ProtocolError, UsageError

__all__ = ["DAEMON_LOST", "NO_DAEMON", "STOPPING", "refusal", "stayed_away", "unreachable", "unreadable"]

NO_DAEMON = "NO_DAEMON"
DAEMON_LOST = "DAEMON_LOST"
STOPPING = "STOPPING"


_WITH_MORE = (errors.ToolDenied, errors.HostFull)
"""They need what an answer does not hold."""


def _classes() -> dict[str, type[HarnessError]]:
    """The class of every code that one class has for itself."""
    found: dict[str, type[HarnessError]] = {}
    for name in errors.__all__:
        each = getattr(errors, name)
        plain = isinstance(each, type) and issubclass(each, HarnessError) and each not in _WITH_MORE
        if plain and each.code != HarnessError.code:
            found.setdefault(each.code, each)
    return found


_CLASS_OF_CODE = _classes()


def refusal(address: str, status: int, body: JsonObject) -> HarnessError:
    """The error that an answer with an HTTP ``status`` of 300 or more stands for."""
    told = body.get("error")
    if not isinstance(told, dict) or not isinstance(told.get("message"), str):
        return unreadable(address)
    code, hint = told.get("code"), told.get("hint")
    kind = _CLASS_OF_CODE.get(str(code), _class_of_status(status))
    return kind(
        told["message"],
        code=code if isinstance(code, str) else None,
        hint=hint if isinstance(hint, str) else None,
    )


def _class_of_status(status: int) -> type[HarnessError]:
    if status in (401, 403):
        return CredentialError
    # A request that was wrong is the caller's mistake; one that came at the wrong time is nobody's.
    if 400 <= status < 500 and status not in (http.HTTPStatus.TOO_MANY_REQUESTS, 408):
        return UsageError
    return HarnessError


def unreachable(address: str, error: BaseException, *, was_there: bool = False) -> HarnessError:
    """Nobody answers at ``address``, or whoever did ``was_there`` and went away."""
    cause = _system_error(error)
    if not was_there and _is_connecting(error):
        if isinstance(cause, PermissionError):
            return UsageError(f"the daemon at {address} is another user's", code=NO_DAEMON)
        return UsageError(f"no daemon answers at {address}", code=NO_DAEMON, hint="start one with: dsh serve")
    if isinstance(error, requests.Timeout):
        return HarnessError(f"the daemon at {address} does not answer in time", code=DAEMON_LOST)
    return HarnessError(
        f"the daemon at {address} went away before it had answered",
        code=DAEMON_LOST,
        hint="what it was asked for may be done; look with: dsh agent ls",
    )


def stayed_away(address: str, patience_s: float) -> HarnessError:
    """A daemon that was there went away and was not started again in time."""
    return HarnessError(
        f"the daemon at {address} went away and did not come back in {patience_s:g} s",
        code=DAEMON_LOST,
        hint="start it with: dsh serve",
    )


def unreadable(address: str) -> HarnessError:
    """What answers speaks another language."""
    return ProtocolError(f"what answers at {address} is no daemon of dsh, or another version")


def _chain(error: BaseException) -> list[BaseException]:
    """An error with what it was made of; the libraries keep that in several places."""
    found: list[BaseException] = []
    waiting: list[object] = [error]
    while waiting:
        one = waiting.pop()
        if isinstance(one, BaseException) and one not in found:
            found.append(one)
            waiting += [one.__cause__, one.__context__, getattr(one, "reason", None), *one.args]
    return found


def _is_connecting(error: BaseException) -> bool:
    never = (urllib3.exceptions.NewConnectionError, urllib3.exceptions.ConnectTimeoutError)
    return any(isinstance(each, never) for each in _chain(error))


def _system_error(error: BaseException) -> OSError | None:
    known = (each for each in _chain(error) if isinstance(each, OSError) and each.errno is not None)
    return next(known, None)
