"""What is in force and where each value came from: defaults, files, environment and options, resolved once.

Read-only: nothing here creates a file but `prepare_home`.
"""

from __future__ import annotations

from dsh_actors.config.home import find_home, prepare_home
from dsh_actors.config.keys import KEYS, Key, nearest, parse_duration
from dsh_actors.config.load import Config, load_config
from dsh_actors.config.providers import ModelSettings, ProviderSettings
from dsh_actors.config.sections import (
    AgentConfig,
    ApprovalConfig,
    ModelConfig,
    SessionConfig,
    ToolsConfig,
)

__all__ = [
    "KEYS",
    "AgentConfig",
    "ApprovalConfig",
    "Config",
    "Key",
    "ModelConfig",
    "ModelSettings",
    "ProviderSettings",
    "SessionConfig",
    "ToolsConfig",
    "find_home",
    "load_config",
    "nearest",
    "parse_duration",
    "prepare_home",
]
