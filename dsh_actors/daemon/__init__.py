"""The daemon: many agents in one process, an HTTP API over them, and the client of that API."""
