"""`python -m tests.model_server [SCRIPT.json] [--port N] [--until-stdin-ends]`: run the server.

SCRIPT.json is a list of entries (see `entries`), or `{"routes": {NAME: {"entries": […], "after":
"fail"|"repeat"|"cycle"}}}`. The base URL is printed first. Try: `OPENAI_API_KEY=sk-x
OPENAI_BASE_URL=<the URL> bin/dsh run -m openai/test "hello"`.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import threading
from pathlib import Path

from tests.model_server.server import Script, serve

DEMO = {"routes": {"default": {"entries": [{"text": "hello from the script"}], "after": "repeat"}}}


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.model_server", description=__doc__)
    parser.add_argument("script", nargs="?")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--until-stdin-ends", action="store_true")
    options = parser.parse_args()
    script = Script()
    loaded = json.loads(Path(options.script).read_text("utf-8")) if options.script else DEMO
    script.load({"routes": {"default": {"entries": loaded}}} if isinstance(loaded, list) else loaded)
    with socket.create_server(("127.0.0.1", options.port), backlog=1024) as listener:
        print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
        if not options.until_stdin_ends:
            return serve(listener, script)
        threading.Thread(target=serve, args=(listener, script), daemon=True).start()
        # The tests hold the other end: the server never outlives them, however they end.
        sys.stdin.buffer.read()


if __name__ == "__main__":
    main()
