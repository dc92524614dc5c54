"""The daemon: one process that hosts many agents, behind HTTP on a Unix socket or on loopback."""
