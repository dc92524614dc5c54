"""A scripted chat-completions server: a process of its own on a loopback socket, for tests and benchmarks."""

from tests.model_server.checks import (
    marked_pids,
    prefix_faults,
    request_faults,
    reuse_faults,
    wait_until_unmarked,
)
from tests.model_server.client import ModelServer, Request
from tests.model_server.entries import (
    CC,
    EOF,
    ERRFRAME,
    LEN,
    PING,
    RAW,
    STALL,
    THINK,
    C,
    Entry,
    H,
    T,
)

__all__ = [
    "CC",
    "EOF",
    "ERRFRAME",
    "LEN",
    "PING",
    "RAW",
    "STALL",
    "THINK",
    "C",
    "Entry",
    "H",
    "ModelServer",
    "Request",
    "T",
    "marked_pids",
    "prefix_faults",
    "request_faults",
    "reuse_faults",
    "wait_until_unmarked",
]
