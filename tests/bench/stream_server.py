"""A server of many streams at the same pace: `python -m tests.bench.stream_server STREAMS CHUNKS PER_SECOND`.

One thread and one poll. It waits until all requests are there, then sends each stream its next chunk
at each tick; a chunk's text is the time of the monotonic clock at which it was due. It prints its port,
and at its end how late it was itself, in seconds, at worst.
"""

from __future__ import annotations

import select
import socket
import sys
import time

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
END = (
    b'data: {"choices":[{"index":0,"delta":{"content":""},"finish_reason":"stop"}]}\n\n'
    b"data: [DONE]\n\n"
)


def chunk(text: str) -> bytes:
    return _frame(
        b'data: {"id":"930c60df-bf64-41c9-a88e-3ec75f81e00e","object":"chat.completion.chunk",'
        b'"created":1705651092,"model":"test","system_fingerprint":"fp_a49d71b8a1","choices":'
        b'[{"index":0,"delta":{"content":"%b "},"logprobs":null,"finish_reason":null}]}\n\n' % text.encode()
    )


def _frame(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def accept_all(listener: socket.socket, streams: int) -> list[socket.socket]:
    """The connections of all requests; each request must have a short body."""
    poller = select.poll()
    poller.register(listener, select.POLLIN)
    by_fd: dict[int, tuple[socket.socket, bytearray]] = {}
    ready: list[socket.socket] = []
    while len(ready) < streams:
        for fd, _ in poller.poll(60_000):
            if fd == listener.fileno():
                connection, _ = listener.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                by_fd[connection.fileno()] = (connection, bytearray())
                poller.register(connection, select.POLLIN)
                continue
            connection, data = by_fd[fd]
            data += connection.recv(65_536)
            if data.endswith(b"}"):
                poller.unregister(fd)
                ready.append(connection)
    return ready


def main() -> None:
    streams, chunks, rate = map(int, sys.argv[1:])
    with socket.create_server(("127.0.0.1", 0), backlog=streams) as listener:
        print(listener.getsockname()[1], flush=True)
        connections = accept_all(listener, streams)
        for connection in connections:
            connection.sendall(HEAD)
        pause = select.poll()
        begun, late = time.monotonic(), 0.0
        for number in range(chunks):
            due = begun + number / rate
            left = due - time.monotonic()
            if left > 0:
                pause.poll(1000 * left)
            data = chunk(f"{due:.6f}")
            for connection in connections:
                connection.sendall(data)
            late = max(late, time.monotonic() - due)
        for connection in connections:
            connection.sendall(_frame(END) + b"0\r\n\r\n")
    print(f"{late:.6f}", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
