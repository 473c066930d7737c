"""What the readers of stored values raise: a value that breaks its format."""

from __future__ import annotations


class Malformed(Exception):
    """A file or message breaks its format.

    The message says what was found and what was expected, but not where: whoever opened the file
    knows that and makes a :class:`onnxopt_cli.errors.Problem` of it. No user ever meets this one.
    """
