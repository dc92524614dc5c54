"""Fixtures of the tests that run the real program."""

from tests.cli.process_fixtures import dsh, model_server, model_server_process

__all__ = ["dsh", "model_server", "model_server_process"]
