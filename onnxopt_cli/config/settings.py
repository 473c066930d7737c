"""Settings that are declared once: each is a field of a frozen dataclass and an option of commands.

The metadata of a field contain an :class:`Option`, which states the spelling on the command line,
the help, the kind of value and the uses of the setting. Options of click, keys of a profile, JSON,
and the command that repeats a run are derived from the metadata::

    @dataclass(frozen=True)
    class Limits(Settings):
        timeout: float = setting(60.0, "--timeout SECONDS", "Time limit of a case.", Number())
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import Field, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from onnxopt_cli.core.text import printable
from onnxopt_cli.errors import UsageError

_OPTION, _GROUP, _SECTION = "option", "group", "section"


@dataclass(frozen=True, slots=True)
class Text:
    """A text value; base class of the other kinds of values.

    Attributes:
        of: the kind of names that a shell offers as completions of the value, such as ``backend``
            or ``operator``; empty for no completion.
    """

    of: str = ""

    def check(self, value: object) -> Any:
        """Return a value, converted to the type of the setting.

        Raises:
            ValueError: if the value is invalid; the message describes the valid values.
        """
        if not isinstance(value, str):
            raise ValueError("text")  # noqa: TRY004 - one error for all wrong values
        return value

    def word(self, value: Any) -> str:
        """Return a value as a user types it on the command line."""
        return str(value)

    def json(self, value: Any) -> Any:
        """Return a checked value as JSON."""
        return self.word(value)


class Flag(Text):
    """True or false; the option has no value on the command line."""

    __slots__ = ()

    def check(self, value: object) -> Any:
        """Return the value; implements :meth:`Text.check`."""
        if not isinstance(value, bool):
            raise ValueError("true or false")  # noqa: TRY004 - one error for all wrong values
        return value

    def json(self, value: Any) -> Any:
        """Return the value."""
        return value


@dataclass(frozen=True, slots=True)
class Number(Text):
    """A finite number.

    Attributes:
        least: the lower limit.
        most: the upper limit; None for no limit.
        beyond: whether the lower limit itself is invalid.
        whole: whether only whole numbers are valid.
    """

    least: float = 0
    most: float | None = None
    beyond: bool = False
    whole: bool = False

    def check(self, value: object) -> Any:
        """Return the number; implements :meth:`Text.check`."""
        numbers = int if self.whole else int | float
        if isinstance(value, bool) or not isinstance(value, numbers) or not self._holds(value):
            kind = "a whole number" if self.whole else "a number"
            least = f"{'above' if self.beyond else 'of at least'} {self.least:g}"
            most = "" if self.most is None else f" and at most {self.most:g}"
            raise ValueError(f"{kind} {least}{most}")
        return value

    def _holds(self, value: float) -> bool:
        # An integer may be too large to be converted to a float.
        if not abs(value) <= sys.float_info.max or (self.most is not None and value > self.most):
            return False
        return value > self.least if self.beyond else value >= self.least

    def word(self, value: Any) -> str:
        """Return the number, as an integer if its fraction is zero."""
        return str(value).removesuffix(".0")

    def json(self, value: Any) -> Any:
        """Return the number."""
        return value


@dataclass(frozen=True, slots=True)
class OneOf(Text):
    """A member of an enumeration; the value of a member is accepted as well."""

    members: type[StrEnum] = StrEnum

    def check(self, value: object) -> Any:
        """Return the member; implements :meth:`Text.check`."""
        try:
            return self.members(str(value))
        except ValueError:
            raise ValueError(" or ".join(self.members)) from None


class Size(Text):
    """A number of bytes, typed as ``2GiB``. The number 0, typed as ``none``, means unlimited."""

    __slots__ = ()

    #: The smallest number of bytes of memory with which a worker can start.
    MIN_BYTES = 64 << 20
    _UNITS: ClassVar = {"": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
    _TYPED: ClassVar = re.compile(r"(\d{1,15})\s*(|KiB|MiB|GiB)", re.IGNORECASE)

    def check(self, value: object) -> Any:
        """Return the number of bytes; implements :meth:`Text.check`."""
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError("a number of bytes")  # noqa: TRY004 - one error for all wrong values
        if value != 0 and value < self.MIN_BYTES:
            raise ValueError("a number of bytes: 0, or at least 64 MiB")
        return value

    def parse(self, written: str) -> int:
        """Return the number of bytes that a word on the command line denotes.

        Raises:
            ValueError: if the word is not a size, or the size is too small.
        """
        if written == "none":
            return 0
        match = self._TYPED.fullmatch(written)
        if match is None:
            raise ValueError(f"{written!r} is not a size; write it as in 2GiB, or none")
        size = int(match[1]) * self._UNITS[match[2].upper()]
        if size < self.MIN_BYTES:
            raise ValueError("a worker cannot start with less than 64MiB")
        return size

    def word(self, value: Any) -> str:
        """Return the size as a multiple of the largest unit that divides it."""
        if value == 0:
            return "none"
        if not isinstance(value, int) or value % (1 << 20):
            return str(value)
        gibibytes, rest = divmod(value >> 20, 1 << 10)
        return f"{value >> 20}MiB" if rest else f"{gibibytes}GiB"

    def json(self, value: Any) -> Any:
        """Return the number of bytes."""
        return value


class JobCount(Number):
    """A number of processes, typed as a number, or as ``auto`` for all available processors."""

    __slots__ = ()

    def parse(self, written: str) -> int:
        """Return the number that a word on the command line denotes.

        Raises:
            ValueError: if the word is neither ``auto`` nor a valid number.
        """
        if written == "auto":
            from onnxopt_cli.core.blocks import available_jobs

            return available_jobs()
        if not (written.isdecimal() and 0 < int(written) <= (self.most or 0)):
            raise ValueError(f"{written!r} is neither auto nor a number from 1 to {self.most}")
        return int(written)


@dataclass(frozen=True, slots=True)
class File(Text):
    """A path.

    Attributes:
        exists: whether the file or folder must exist.
        folder: whether the path may lead to a folder.
    """

    exists: bool = False
    folder: bool = True

    def check(self, value: object) -> Any:
        """Return the path; implements :meth:`Text.check`."""
        if not isinstance(value, str | os.PathLike):
            raise ValueError("a path")  # noqa: TRY004 - one error for all wrong values
        return Path(value)


@dataclass(frozen=True, slots=True)
class Option:
    """How a setting is written on the command line, and how its value is used.

    Attributes:
        written: the spellings and a placeholder for the value, as in the help: ``-j, --jobs N``. A
            text that begins with ``[`` declares an argument.
        about: the help text.
        kind: the kind of the value, or of each value if there are several.
        many: True if the option may be given several times, 3 if it takes three values. In both
            cases, the value of the setting is a tuple.
        may_differ: whether a run may be resumed or merged with another value of the setting.
        from_log: whether ``--resume`` without targets takes the value from the log.
        repeated: whether the command that repeats a case contains the option. True for settings
            that may change a verdict.
        typed_default: the default on the command line, if it differs from the default of the field.
        shorthand: a spelling for one particular value: (spelling, value, help text).
    """

    written: str
    about: str
    kind: Text = field(default_factory=Text)
    many: bool | int = False
    may_differ: bool = False
    from_log: bool = False
    repeated: bool = False
    typed_default: str | None = None
    shorthand: tuple[str, Any, str] | None = None

    @property
    def flag(self) -> str:
        """The longest spelling, such as ``--jobs``; of a pair of flags, the flag for false."""
        last = self.written.rpartition(", ")[2].partition(" ")[0]
        return last.rpartition("/")[2]

    def check(self, value: Any) -> Any:
        """Return a value, or a tuple of several values, converted to the type of the setting.

        Raises:
            ValueError: if a value is invalid; the message describes the valid values.
        """
        if not self.many:
            return self.kind.check(value)
        several = isinstance(value, Iterable) and not isinstance(value, str | Mapping)
        return tuple(map(self.kind.check, value if several else (value,)))

    def words(self, value: Any) -> list[str]:
        """Return the words to type for a value, valid or not; an empty list for None."""
        if isinstance(self.kind, Flag):
            # For a pair of flags, self.flag is the flag for false, because true is the default.
            return [self.flag] if value is ("/" not in self.written) else []
        if value is None:
            return []
        values = value if self.many and isinstance(value, list | tuple) else [value]
        typed = [self.kind.word(item) for item in values]
        if self.written.startswith("["):
            return typed
        if self.many is True:
            return [word for typed_word in typed for word in (self.flag, typed_word)]
        return [self.flag, *typed] if typed else []

    def json(self, value: Any) -> Any:
        """Return a checked value, or several checked values, as JSON."""
        if value is None:
            return None
        return [*map(self.kind.json, value)] if self.many else self.kind.json(value)


@dataclass(frozen=True, slots=True)
class Declared:
    """A declared setting.

    Attributes:
        name: name of the field, of the parameter of commands, and of the key in JSON.
        option: the option or argument of the command line.
        default: default value of the field.
        section: the heading of the help under which the option is listed.
    """

    name: str
    option: Option
    default: Any
    section: str


def setting(
    default: Any,
    written: str,
    about: str,
    kind: Text | None = None,
    *,
    section: str = "",
    **uses: Any,
) -> Any:
    """Declare a setting: a field of a dataclass that derives from :class:`Settings`.

    Args:
        default: default value of the field.
        written: see :class:`Option`.
        about: see :class:`Option`.
        kind: the kind of the value; None for text.
        section: the heading of the help under which the option is listed. If empty, the section of
            the preceding setting or, for the first setting of a group, the section of the group.
        uses: the other attributes of :class:`Option`.
    """
    option = Option(written, about, kind or Text(), **uses)
    return field(default=default, metadata={_OPTION: option, _SECTION: section})


Group = TypeVar("Group", bound="Settings")


def group(kind: type[Group], section: str = "") -> Group:
    """Declare a field of :class:`Settings` that is a group of settings itself."""
    made: Group = field(default_factory=kind, metadata={_GROUP: kind, _SECTION: section})
    return made


class Settings:
    """Base class of frozen dataclasses whose fields are settings or groups of settings.

    Raises:
        UsageError: if a value of a setting is invalid.
    """

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __post_init__(self) -> None:
        for member in fields(self):
            value, option = getattr(self, member.name), member.metadata.get(_OPTION)
            if option is None or (value is None and member.default is None):
                continue
            try:
                checked = option.check(value)
            except ValueError as error:
                printed = printable(repr(value))
                raise UsageError(f"{member.name}={printed}: expected {error}") from None
            object.__setattr__(self, member.name, checked)

    @classmethod
    def declared(cls) -> tuple[Declared, ...]:
        """Return all settings, including the settings of groups, in the order of declaration."""
        return tuple(_settings_of(cls, ""))

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Return an object whose settings have the given values.

        Args:
            values: values by the names of settings, including the settings of groups. A setting
                keeps its default if it has no value, or if its value is None.

        Raises:
            UsageError: if a value of a setting is invalid.
        """
        given: dict[str, Any] = {}
        for member in fields(cls):
            if inner := member.metadata.get(_GROUP):
                given[member.name] = inner.of(values)
            elif _OPTION in member.metadata and values.get(member.name) is not None:
                given[member.name] = values[member.name]
        return cls(**given)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Return the settings that JSON from an untrusted source describes.

        Unknown names, invalid values, and values of a group that contradict each other are
        ignored.
        """
        groups: dict[str, Any] = {}
        valid: dict[str, Any] = {}
        for member in fields(cls):
            if inner := member.metadata.get(_GROUP):
                groups[member.name] = inner.from_json(data)
            elif option := member.metadata.get(_OPTION):
                with suppress(KeyError, ValueError, UsageError):
                    valid[member.name] = option.check(data[member.name])
        try:
            return cls(**groups, **valid)
        except UsageError:
            return cls(**groups)

    def values(self) -> dict[str, Any]:
        """Return the values of all settings by name, including the settings of groups."""
        found: dict[str, Any] = {}
        for member in fields(self):
            value = getattr(self, member.name)
            if _GROUP in member.metadata:
                found |= value.values()
            elif _OPTION in member.metadata:
                found[member.name] = value
        return found

    def to_json(self) -> dict[str, Any]:
        """Return the values of all settings by name, as JSON."""
        values = self.values()
        return {
            declared.name: declared.option.json(values[declared.name])
            for declared in self.declared()
        }

    def argv(self) -> list[str]:
        """Return the words on the command line for every value that is not the default."""
        values = self.values()
        stated = [
            declared
            for declared in self.declared()
            if declared.option.typed_default is not None
            or values[declared.name] != declared.default
        ]
        return words_of(stated, values)


def _settings_of(cls: type[Settings], section: str) -> Iterator[Declared]:
    for member in fields(cls):
        section = member.metadata.get(_SECTION) or section
        if inner := member.metadata.get(_GROUP):
            yield from _settings_of(inner, section)
        elif option := member.metadata.get(_OPTION):
            yield Declared(member.name, option, member.default, section)


def words_of(settings: Iterable[Declared], values: Mapping[str, Any]) -> list[str]:
    """Return the words to type for the values of some settings; arguments come last.

    Args:
        settings: the settings.
        values: values by the names of settings, from JSON or from settings; they need not be valid.
    """
    words: list[str] = []
    arguments: Sequence[str] = ()
    for declared in settings:
        typed = declared.option.words(values.get(declared.name))
        if declared.option.written.startswith("["):
            arguments = typed
        else:
            words += typed
    return [*words, "--", *arguments] if arguments else words
