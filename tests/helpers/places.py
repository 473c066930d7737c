"""Paths of the repository and of the plugins for tests."""

from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PLUGINS = REPOSITORY / "tests" / "plugins"
