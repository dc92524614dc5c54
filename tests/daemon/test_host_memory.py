"""The heap of a process that hosts agents: small holes only, and free memory goes back to the system."""

from __future__ import annotations

import os
from pathlib import Path

from tests.daemon.host_kit import run_program

SOURCE = """
import ctypes
from dsh_actors.runtime.memory import settle_memory

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]

def resident():
    with open("/proc/self/status", encoding="ascii") as status:
        return int(next(line for line in status if line.startswith("VmRSS")).split()[1])

def take(size):
    piece = libc.malloc(size)
    ctypes.memset(piece, 1, size)
    return piece

settle_memory()
libc.free(take(30_000_000))  # from here on glibc would keep pieces of this size in the heap
before = resident()
pieces = []
for _ in range(20):
    pieces += [take(1_000_000), take(1_000)]
small = pieces[1::2]
for piece in pieces[::2]:
    libc.free(piece)
print(resident() - before if hasattr(libc, "mallopt") else 0)  # another C library has its own ways
"""


def test_large_pieces_leave_no_holes_between_small_ones(tmp_path: Path) -> None:
    ran = run_program(SOURCE, tmp_path)
    assert ran.returncode == os.EX_OK, ran.stderr
    assert int(ran.stdout) < 2_000, "kB are kept of 20,000"
