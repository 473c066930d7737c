"""ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import onnx
from onnx import parser

from onnxopt_cli.backends.onnxruntime.onnxruntime_errors import unsupported_by_onnxruntime
from onnxopt_cli.backends.onnxruntime.onnxruntime_values import (
    argument,
    array_of,
    as_ort_values,
    foreign_dtype,
    restored,
)
from onnxopt_cli.backends.protocol import (
    Backend,
    Prepared,
    reporting,
    unavailable,
)
from onnxopt_cli.backends.specification import Specification
from onnxopt_cli.core.text import printable
from onnxopt_cli.core.values import Value
from onnxopt_cli.errors import BackendUnavailable, UsageError

if TYPE_CHECKING:
    import onnxruntime

_CPU = "CPUExecutionProvider"
_OPTIONS = (
    "provider",
    "graph_optimization_level",
    "intra_op_num_threads",
    "inter_op_num_threads",
    "config.KEY",
    "unsupported",
)
# Nothing below fatal: what goes wrong comes back as an exception.
_FATAL = 4
_MOST_THREADS = 1024
# No node that the provider might lack: the input is the output.
_PROBE = '<ir_version: 7, opset_import: ["" : 13]> probe (float[1] x) => (float[1] x) {}'


class OnnxRuntimeBackend(Backend):
    """The backend ``onnxruntime``, by default on one thread of the CPU.

    Options:
        provider: execution providers, most wanted first, joined by ``+``. What they lack runs on
            the CPU, unless ``config.session.disable_cpu_ep_fallback=1`` makes it unsupported.
        graph_optimization_level: ``disable_all``, ``enable_basic``, ... ``enable_all`` (default).
        intra_op_num_threads, inter_op_num_threads: 1 by default; 0 leaves it to ONNX Runtime.
        config.KEY: a session configuration entry.
        unsupported: what an error has in its text that says that something is not supported, beside
            those that we know.

    Raises:
        UsageError: if an option is unknown or has no such value.
        BackendUnavailable: if ONNX Runtime, or a provider, is not installed or is left out.
        Exception: whatever ONNX Runtime raises when it is imported, or opens no session.
    """

    def __init__(self, specification: Specification) -> None:
        specification.require_known(_OPTIONS)
        self.name = specification.text
        self._runtime = _import_runtime()
        self.version = f"onnxruntime {self._runtime.__version__}"
        self._runtime.set_default_logger_severity(_FATAL)
        self._providers = _providers(self._runtime, specification.options.get("provider", _CPU))
        self._session_options = _session_options(self._runtime, specification.options)
        self._probe()

    def prepare(self, model: onnx.ModelProto) -> Prepared:
        """Open a session.

        Raises:
            Unsupported: if ONNX Runtime says that it does not know something of the model.
        """
        with reporting(unsupported_by_onnxruntime):
            return Prepared(reporting(unsupported_by_onnxruntime)(partial(_run, self._open(model))))

    def _open(self, model: onnx.ModelProto) -> onnxruntime.InferenceSession:
        return self._runtime.InferenceSession(
            model.SerializeToString(),
            self._session_options,
            providers=self._providers,
            # Else it prints, and runs the model on another provider than the one under test.
            enable_fallback=0,
        )

    def _probe(self) -> None:
        """Make sure that a session gets its providers, which ONNX Runtime leaves out in silence."""
        session = self._open(parser.parse_model(_PROBE))
        missing = [name for name in self._providers if name not in session.get_providers()]
        if missing:
            hint = "are the provider's libraries installed, and its device present?"
            what = f": ONNX Runtime cannot load {' or '.join(missing)}"
            raise unavailable(self.name, what, hint)


def _run(session: onnxruntime.InferenceSession, inputs: Mapping[str, Value]) -> list[object]:
    declared = [output.type for output in session.get_outputs()]
    foreign = list(map(foreign_dtype, declared))
    arguments = {name: argument(value) for name, value in inputs.items()}
    # Both ways are needed: OrtValues carry every element type but no strings, sequences and maps,
    # arrays the other way round.
    if {*foreign} - {None} and all(it.startswith("tensor(") for it in declared):
        values = as_ort_values(arguments)
        if values is not None:
            return list(map(array_of, session.run_with_ort_values(None, values)))
    return list(map(restored, session.run(None, arguments), foreign))


def _import_runtime() -> Any:
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        if error.name != "onnxruntime":
            raise
        raise BackendUnavailable(
            "ONNX Runtime is not installed", hint='pip install "onnxopt[ort]"'
        ) from error
    return onnxruntime


def _providers(runtime: Any, written: str) -> list[str]:
    wanted = list(dict.fromkeys(written.split("+")))
    available = runtime.get_available_providers()
    for name in wanted:
        if name not in available:
            raise BackendUnavailable(
                f"this ONNX Runtime has no provider {printable(name)!r}",
                hint=f"it has {', '.join(available)}",
            )
    return wanted


def _session_options(runtime: Any, written: Mapping[str, str]) -> Any:
    options = runtime.SessionOptions()
    options.execution_mode = runtime.ExecutionMode.ORT_SEQUENTIAL
    level = written.get("graph_optimization_level", "enable_all")
    options.graph_optimization_level = _optimization_level(runtime, level)
    for name in ("intra_op_num_threads", "inter_op_num_threads"):
        setattr(options, name, _thread_count(name, written.get(name, "1")))
    for name, value in written.items():
        if name.startswith("config."):
            options.add_session_config_entry(name.removeprefix("config."), value)
    return options


def _optimization_level(runtime: Any, written: str) -> Any:
    levels = {
        name.removeprefix("ORT_").lower(): level
        for name, level in runtime.GraphOptimizationLevel.__members__.items()
    }
    if written not in levels:
        raise UsageError(
            f"graph_optimization_level is {printable(written)!r}",
            hint=f"it is one of {', '.join(levels)}",
        )
    return levels[written]


def _thread_count(name: str, written: str) -> int:
    if not (written.isascii() and written.isdigit()) or int(written) > _MOST_THREADS:
        raise UsageError(
            f"{name} is {printable(written)!r}; expected a number of threads up to {_MOST_THREADS}"
        )
    return int(written)
