"""The Jinja environment of HTML reports and of the site of a scoreboard.

It escapes all text that templates insert: Jinja escapes markup, and invisible or harmful characters
become visible escapes. A template that forgets to escape text is therefore harmless.
"""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from onnxopt_cli.core.text import printable


def template_environment(package: str, folder: str) -> Environment:
    """Return the environment of the templates in a folder of a package."""
    environment = Environment(
        loader=PackageLoader(package, folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # Markup, a subclass of str, is trusted.
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    environment.filters["lines"] = lambda text: Markup("{}").format(printable(text, lines=True))
    return environment
