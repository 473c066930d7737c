"""Where things are."""

from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PLUGINS = REPOSITORY / "tests" / "plugins"
