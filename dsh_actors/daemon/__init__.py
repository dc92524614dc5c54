"""The daemon: many agents in one process, live or asleep, and the HTTP interface to them."""
