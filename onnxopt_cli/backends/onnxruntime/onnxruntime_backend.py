"""The backend ``onnxruntime``."""

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
# Log fatal errors only: errors are raised as exceptions.
_FATAL = 4
_MAX_THREADS = 1024
# A model without nodes, which every provider supports: the input is the output.
_PROBE = '<ir_version: 7, opset_import: ["" : 13]> probe (float[1] x) => (float[1] x) {}'


class OnnxRuntimeBackend(Backend):
    """The backend ``onnxruntime``, by default on one thread of the CPU.

    Options:
        provider: execution providers in order of priority, joined by ``+``. Nodes that they do not
            support run on the CPU; ``config.session.disable_cpu_ep_fallback=1`` makes these
            unsupported.
        graph_optimization_level: ``disable_all``, ``enable_basic``, ... ``enable_all`` (default).
        intra_op_num_threads, inter_op_num_threads: 1 by default; 0 for ONNX Runtime's own choice.
        config.KEY: a session configuration entry.
        unsupported: a regular expression that matches further errors about unsupported features,
            in addition to the known messages of ONNX Runtime.

    Raises:
        UsageError: if an option is unknown or has an invalid value.
        BackendUnavailable: if ONNX Runtime or a provider is not installed, or does not load.
        Exception: any exception of the import of ONNX Runtime or of its first session.
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
            Unsupported: if ONNX Runtime reports an unsupported feature of the model.
        """
        with reporting(unsupported_by_onnxruntime):
            return Prepared(reporting(unsupported_by_onnxruntime)(partial(_run, self._open(model))))

    def _open(self, model: onnx.ModelProto) -> onnxruntime.InferenceSession:
        return self._runtime.InferenceSession(
            model.SerializeToString(),
            self._session_options,
            providers=self._providers,
            # Otherwise ONNX Runtime prints a warning and runs the model on another provider.
            enable_fallback=0,
        )

    def _probe(self) -> None:
        """Check that a session gets its providers: ONNX Runtime drops them without an error."""
        session = self._open(parser.parse_model(_PROBE))
        missing = [name for name in self._providers if name not in session.get_providers()]
        if missing:
            hint = "are the provider's libraries installed, and its device present?"
            problem = f": ONNX Runtime cannot load {' or '.join(missing)}"
            raise unavailable(self.name, problem, hint)


def _run(session: onnxruntime.InferenceSession, inputs: Mapping[str, Value]) -> list[object]:
    types = [output.type for output in session.get_outputs()]
    foreign = list(map(foreign_dtype, types))
    arguments = {name: argument(value) for name, value in inputs.items()}
    # OrtValues support every element type except strings, and neither sequences nor maps. Arrays
    # support those, but only the element types of NumPy.
    if {*foreign} - {None} and all(name.startswith("tensor(") for name in types):
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
    providers = list(dict.fromkeys(written.split("+")))
    available = runtime.get_available_providers()
    for name in providers:
        if name not in available:
            raise BackendUnavailable(
                f"this ONNX Runtime has no provider {printable(name)!r}",
                hint=f"it has {', '.join(available)}",
            )
    return providers


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
    if not (written.isascii() and written.isdigit()) or int(written) > _MAX_THREADS:
        raise UsageError(
            f"{name} is {printable(written)!r}; expected a number of threads up to {_MAX_THREADS}"
        )
    return int(written)
