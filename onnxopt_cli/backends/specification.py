r"""Parse backend specifications: a name, attribute, command or adapter, with options.

::

    onnxruntime,intra_op_num_threads=2,config.session.disable_prepacking=1
    python:my_package.backend:Backend,device=CUDA:1
    python:my_backend.py:Backend,python=vendor/.venv/bin/python
    python:C:\vendor, inc\backend.py:Backend
    exec:./build/adapter --fast "a b",timeout=10,unsupported=no kernel|unknown op, '.*'
    adapter:openvino@2026.3.0,timeout=10
    adapter:./mine.py

    acme=python:my_package.backend:Backend,device=CUDA:1

If a name such as ``acme`` precedes the specification, this name identifies the backend in results,
reports and expectation files; otherwise, the specification identifies the backend. A colon
separates a module or file from its attribute: the first colon after which the text consists of an
attribute and options of the form ``name=value``. Therefore, drive letters, commas and colons in a
path need no quotes. The value of an option contains no comma. The option ``unsupported`` is an
exception: it must be the last option, and all text after it is a regular expression, in which
commas and quotes are allowed.

A command is split as a POSIX shell splits it, without expansions. If the last argument of a command
ends in ``,name=value``, quotes around the argument keep the ending from being parsed as an option.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from onnxopt_cli.backends.protocol import compile_pattern, misused
from onnxopt_cli.core.text import nearest, printable

_LABEL = r"[A-Za-z][\w.-]{0,59}"
#: Describes in words which names a user may give to a backend.
LABEL_FORM = "a letter, then up to 59 letters, digits, '.', '_' and '-'"
_NAMED = re.compile(rf"(?P<label>{_LABEL})=(?P<text>.+)", re.DOTALL)
_PLUGIN = "python:"
_COMMAND = "exec:"
#: The text with which the specification of an adapter begins.
ADAPTER = "adapter:"
_NAME = r"[A-Za-z_][\w.-]*="
_OPTION = rf"{_NAME}[^,]*"
# The option that must be the last one, because its value may contain commas.
_LAST = "unsupported="
#: The prefix of options that set an environment variable before the backend is imported.
ENVIRONMENT = "env."
#: Options that onnxopt itself uses and does not pass to the backend.
OWN_OPTIONS = ("math", "opset", "batch")
#: Kinds of arithmetic that a backend may declare with the option ``math``.
MATH = ("tf32", "bf16", "float16-sums", "vulkan", "cuda-fast")
_ATTRIBUTE = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
_OPTIONS = rf"(?P<options>(?:,(?!{_LAST}){_OPTION})*(?:,{_LAST}.*)?)"
_PYTHON = re.compile(
    rf"python:(?P<source>.+?):(?P<attribute>{_ATTRIBUTE})"
    rf"{_OPTIONS}",
    re.DOTALL,
)
_ADAPTER = re.compile(rf"adapter:(?P<adapter>.+?)(?:@(?P<version>[^@,/\\]+))?{_OPTIONS}", re.DOTALL)
_EXEC = re.compile(
    r"exec:(?P<command>.+?)(?P<options>(?:,[A-Za-z_][\w.-]*=[^,\s\"']*)*)", re.DOTALL
)


@dataclass(frozen=True)  # no slots, because Python 3.9 lacks them: see exec/other_interpreter.py
class Specification:
    """A parsed backend specification.

    Attributes:
        text: the specification as written, without the name before ``=``. Comparisons of
            specifications ignore this attribute.
        name: a built-in backend or an entry point; empty for other kinds.
        source: the module or file of a plugin; empty for other kinds.
        attribute: the dotted path of the plugin's attribute in ``source``.
        command: a command and its arguments; empty for other kinds.
        options: values by name.
        adapter: the name or file of an adapter; empty for other kinds.
        adapter_version: the version of the adapter's runtime; empty for the version that the
            adapter's file requires.
        runtimes: the distributions whose versions identify an adapter; empty for other kinds.
        label: the user's name for the backend; empty without one.
    """

    text: str = field(compare=False)
    name: str = ""
    source: str = ""
    attribute: str = ""
    command: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    adapter: str = ""
    adapter_version: str = ""
    runtimes: Sequence[str] = ()
    label: str = ""

    @property
    def name_in_results(self) -> str:
        """The name that identifies the results of the backend."""
        return self.label or self.text

    @property
    def math(self) -> str:
        """The arithmetic that the option ``math`` declares; empty without the option."""
        return self.options.get("math", "")

    @property
    def batch(self) -> int:
        """The number of cases in a batch, from the option ``batch``; 1 without the option."""
        return int(self.options.get("batch", 1))

    @property
    def timeout(self) -> float | None:
        """The time limit of a response in seconds, from the option ``timeout``.

        None if the option is absent. Also None for a plugin in the interpreter of onnxopt, because
        the plugin itself defines the meaning of its options.

        Raises:
            UsageError: if the value is not a positive number.
        """
        text = self.options.get("timeout")
        if text is None or not (self.command or self.adapter or "python" in self.options):
            return None
        with suppress(ValueError):
            if 0 < (seconds := float(text)) < math.inf:
                return seconds
        raise misused(self.text, f": timeout is {printable(text)!r}, expected seconds")

    @property
    def given(self) -> str:
        """The backend as it is given to ``-b``."""
        return f"{self.label}={self.text}" if self.label else self.text

    def require_known(self, known: tuple[str, ...]) -> None:
        """Reject unknown options; ``config.KEY`` in ``known`` permits each option ``config.*``.

        Raises:
            UsageError: if an option is unknown; the hint lists the known options.
        """
        patterns = [name.replace(".KEY", ".?*") for name in known]
        for name in self.options:
            if not any(fnmatchcase(name, pattern) for pattern in patterns):
                names = ", ".join((*known, *OWN_OPTIONS, f"{ENVIRONMENT}NAME"))
                listed = f"its options: {names}" if known else "it has no options"
                hint = nearest(name, known, listed)
                raise misused(self.text, f" has no option {printable(name)}", hint)


def parse_specification(text: str) -> Specification:
    """Parse a backend's specification, which may have a name, as in ``acme=python:...``.

    Raises:
        UsageError: if the syntax is invalid, an option is repeated, or the option ``unsupported``
            is not a regular expression.
    """
    label, unnamed = split_label(text)
    return replace(_parsed(unnamed), label=label)


def split_label(text: str) -> tuple[str, str]:
    """Return the name that the user gave to a backend (empty if none), and the specification."""
    match = _NAMED.fullmatch(text.strip())
    return (match["label"], match["text"].strip()) if match else ("", text)


def is_label(text: str) -> bool:
    """Return whether a text may be the user's name for a backend."""
    return re.fullmatch(_LABEL, text) is not None


def is_path(source: str) -> bool:
    """Return whether the source of a plugin or adapter is a file."""
    return source.endswith(".py") or "/" in source or "\\" in source


def backend_name(text: str) -> str:
    """Return the name that identifies a backend: the user's name for it, or its specification."""
    label, unnamed = split_label(text)
    return label or unnamed.strip()


def _parsed(text: str) -> Specification:
    if text.startswith(_PLUGIN):
        match = _PYTHON.fullmatch(text)
        if match is None:
            hint = (
                "write python:module:attribute or python:path/to/file.py:attribute, "
                "then options as ,name=value"
            )
            raise misused(text, " names no attribute of a module or file", hint)
        source, attribute, written = match.group("source", "attribute", "options")
        options = _options(text, written)
        return Specification(text, source=source, attribute=attribute, options=options)
    if text.startswith(_COMMAND):
        return _command(text)
    if text.startswith(ADAPTER):
        match = _ADAPTER.fullmatch(text)
        if match is None:
            hint = "write adapter:NAME or adapter:path/to/file.py, then options as ,name=value"
            raise misused(text, " names no adapter", hint)
        adapter, version, written = match.group("adapter", "version", "options")
        if adapter.endswith("@"):
            raise misused(text, " names no version after @", f"write {ADAPTER}NAME@VERSION")
        options = _options(text, written)
        return Specification(text, options=options, adapter=adapter, adapter_version=version or "")
    name, comma, written = text.partition(",")
    before, equals, rest = name.partition("=")
    if equals and not is_label(before):
        problem = f": {printable(before)!r} cannot be the name of a backend"
        raise misused(text, problem, f"a name is {LABEL_FORM}")
    if equals:
        problem = " has two names" if rest else " names no backend after ="
        raise misused(text, problem, f"write {before}=BACKEND")
    options = _options(text, comma + written) if comma else {}
    return Specification(text, name=name.strip(), options=options)


def _command(text: str) -> Specification:
    written, last = _cut(text)
    match = _EXEC.fullmatch(written)
    try:
        command = tuple(shlex.split(match["command"])) if match else ()
    except ValueError as error:
        raise misused(text, f": {error}") from None
    if match is None or not command:
        hint = "write exec:COMMAND with arguments, then options as ,name=value"
        raise misused(text, " names no command", hint)
    return Specification(text, command=command, options=_options(text, match["options"] + last))


def _cut(text: str) -> tuple[str, str]:
    """Split the option ``unsupported`` off a command, unless the option is within quotes."""
    for match in re.finditer(f",{_LAST}", text):
        with suppress(ValueError):
            # shlex.split raises ValueError if the option is inside quotes.
            shlex.split(text[len(_COMMAND) : match.start()])
            return text[: match.start()], text[match.start() :]
    return text, ""


def _options(text: str, written: str) -> dict[str, str]:
    """Return the options by name; in the text, a comma precedes each option."""
    options: dict[str, str] = {}
    before, last, pattern = written.partition(f",{_LAST}")
    for option in before.split(",")[1:]:
        if not re.fullmatch(_OPTION, option, re.DOTALL):
            problem = f": {printable(option)!r} is not an option"
            raise misused(text, problem, "write options as ,name=value")
        name, _, value = option.partition("=")
        if name in options:
            raise misused(text, f": option {name} is given twice")
        options[name] = value
        if name == "math" and value not in MATH:
            listed = f"it is one of {', '.join(MATH)}"
            raise misused(text, f": math is {printable(value)!r}", listed)
        if name == "opset" and value != "auto":
            raise misused(text, f": opset is {printable(value)!r}", "write opset=auto")
        if name == "batch" and not re.fullmatch("[1-9][0-9]{0,2}", value):
            problem = f": batch is {printable(value)!r}"
            raise misused(text, problem, "it is a number of cases from 1 to 999")
    if last:
        options["unsupported"] = _pattern(text, pattern)
    return options


def _pattern(text: str, pattern: str) -> str:
    if option := re.search(f",{_NAME}", pattern):
        hint = r"unsupported=REGEX must be the last option; write a comma of the REGEX as \x2c"
        raise misused(text, f": {printable(option[0])} follows unsupported=REGEX", hint)
    try:
        compile_pattern(pattern)
    except ValueError as error:
        hint = "it is a regular expression of Python, searched for in an error's type and message"
        raise misused(text, f": unsupported={printable(pattern)} {error}", hint) from None
    return pattern
