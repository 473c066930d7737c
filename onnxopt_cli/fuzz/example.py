"""What an example is, whatever it is made of: something to run, and files to keep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from onnxopt_cli.core.case import Content

#: First part of the ids of kept cases.
SUITE = "fuzz"
#: Name of the only case in a file.
NAME = "found"


class Example(Protocol):
    """A model and its inputs."""

    @property
    def operators(self) -> tuple[str, ...]:
        """Names of the operators under test."""

    @property
    def subject(self) -> str:
        """The only operator, or what stands for several."""

    @property
    def breach(self) -> str:
        """How the signature is broken, in words; empty if a right backend accepts it."""

    def content(self) -> Content:
        """Return what ``onnxopt run`` would read from the files."""

    def files(self, stem: str, about: str, source: str) -> Mapping[str, bytes]:
        """Return the files of a case, by name.

        Args:
            stem: what all names begin with.
            about: what happened, one sentence.
            source: what found it.
        """
