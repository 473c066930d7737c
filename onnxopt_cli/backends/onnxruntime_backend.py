"""The backend ``onnxruntime``: conversion of values, and errors about unsupported features.

ONNX Runtime's Python interface supports NumPy arrays of NumPy's own types. Tensors of other types
(bfloat16, float8, int4, ...) are passed as OrtValue, whose bytes this module writes and reads.

Status codes do not identify unsupported features: for an unknown operator, the status is FAIL,
which has many causes, or INVALID_GRAPH. An error reports an unsupported feature only if this module
lists its message; every other error is a failure.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import helper, numpy_helper, parser

from onnxopt_cli.backends.protocol import (
    Backend,
    Prepared,
    reporting,
    unavailable,
)
from onnxopt_cli.backends.specification import Specification
from onnxopt_cli.core.text import printable
from onnxopt_cli.core.values import Array, Value, dtype_named, is_string
from onnxopt_cli.errors import BackendUnavailable, Unsupported, UsageError

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
# The log contains fatal errors only, because other errors are raised as exceptions.
_FATAL = 4
_MAX_THREADS = 1024
# A model that every provider supports, because it has no nodes: the input is the output.
_PROBE = '<ir_version: 7, opset_import: ["" : 13]> probe (float[1] x) => (float[1] x) {}'

# The value of numpy.dtype.isbuiltin for a type that another package has registered.
_REGISTERED = 2

_FAIL = r"\[ONNXRuntimeError\] : 1 : FAIL : "
_INVALID_GRAPH = r"\[ONNXRuntimeError\] : 10 : INVALID_GRAPH : "

# A pattern of the complete message for each kind of unsupported feature. The group ``words`` is the
# relevant part of the message. A missing operator is identified by the groups ``name`` and
# ``domain``, or by the group ``operator``.
_MESSAGES = {
    "an operator, or a domain": _FAIL
    # The message repeats its beginning for each If, Loop or Scan that encloses the node.
    + r"(?:Node \(.*?\) Op \(\w+\) \[TypeInferenceError\] "
    r"Graph attribute inferencing failed: )*"
    r"Fatal error: (?P<words>(?P<operator>\S+)\(-?\d+\) is not a registered function/op)",
    "an operator in one version of a known domain": _INVALID_GRAPH
    + r"This is an invalid model\. In Node, \(.*?, \"(?P<domain>[^\"]*)\", -?\d+\) : .* , Error "
    r"(?P<words>No Op registered for (?P<name>\S+) with domain_version of \d+)"
    r"(?:\n\n==> Context: .*)?",
    "an IR version": _FAIL + r".*?/?model\.cc:\d+ .* "
    r"(?P<words>Unsupported model IR version: \d+, max supported IR version: \d+)",
    "an opset": _FAIL
    + r".*?model_load_utils\.h:\d+ .* ONNX Runtime only \*guarantees\* support for models "
    r"stamped with official released onnx opset versions\. (?P<words>Opset \d+ is under "
    r"development and support for this is limited\.) .*",
    "a kernel for a version, the element types or a mode of an operator": (
        r"\[ONNXRuntimeError\] : 9 : NOT_IMPLEMENTED : (?P<words>.*)"
    ),
    "a mode, rank or element type that a kernel refuses when it is created or run": (
        r"\[ONNXRuntimeError\] : (?:1 : FAIL|2 : INVALID_ARGUMENT|6 : RUNTIME_EXCEPTION) : "
        r"(?:Exception during initialization: |Non-zero status code returned while running \w+ "
        r"node\. Name:'[^']*' Status Message: )"
        # Matches the part of the message that states the place in the source code and the condition
        # that is not met.
        r"(?:\S+\.(?:h|cc):\d+ (?:\w+ (?=')|.*? was false\. ))?"
        r"(?P<words>(?!.*onnxruntime_src)"
        r".*\b(?:(?:is|are) not supported|not supported (?:for|now)|does not support"
        r"|only supports|Unsupported pooling size)\b.*)"
    ),
    "a node on the chosen provider, where session.disable_cpu_ep_fallback is 1": _FAIL
    + r"(?P<words>This session contains graph nodes that are assigned to the default CPU "
    r"EP, but fallback to CPU EP has been explicitly disabled by the user\.)",
    "an element type in a model": _FAIL + r"Exception during loading: "
    r"(?P<words>MLDataType for: \S+ is not currently registered or supported)",
    "an element type of a session's input": (
        r"(?P<words>Numpy_type \d+ can't be converted to MLDataType\.)"
    ),
    "an element type of a session's output": (
        r"(?P<words>No corresponding Numpy type for Tensor Type\. \S+)"
    ),
}
#: Patterns that match complete messages, by kind of unsupported feature. They were derived from the
#: source code and the behaviour of ONNX Runtime 1.31.
PATTERNS = {
    feature: re.compile(message + r"\s*", re.DOTALL) for feature, message in _MESSAGES.items()
}


class OnnxRuntimeBackend(Backend):
    """The backend ``onnxruntime``, by default on one thread of the CPU.

    Options:
        provider: execution providers in order of priority, joined by ``+``. Nodes that the
            providers do not support run on the CPU; with
            ``config.session.disable_cpu_ep_fallback=1``, nodes that would run on the CPU are
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
            # With the fallback, ONNX Runtime would print an error of the provider and run the model
            # on another provider.
            enable_fallback=0,
        )

    def _probe(self) -> None:
        """Check that a session has all providers.

        ONNX Runtime may omit a provider without an error.
        """
        session = self._open(parser.parse_model(_PROBE))
        missing = [name for name in self._providers if name not in session.get_providers()]
        if missing:
            hint = "are the provider's libraries installed, and its device present?"
            problem = f": ONNX Runtime cannot load {' or '.join(missing)}"
            raise unavailable(self.name, problem, hint)


def _run(session: onnxruntime.InferenceSession, inputs: Mapping[str, Value]) -> list[object]:
    types = [output.type for output in session.get_outputs()]
    foreign = list(map(_foreign_dtype, types))
    arguments = {name: _argument(value) for name, value in inputs.items()}
    # OrtValues are used for tensors of element types that NumPy lacks. Arrays, lists and dicts are
    # used for strings, sequences and maps, which OrtValues do not support.
    if {*foreign} - {None} and all(name.startswith("tensor(") for name in types):
        values = _as_ort_values(arguments)
        if values is not None:
            return list(map(_array_of, session.run_with_ort_values(None, values)))
    return list(map(_restored, session.run(None, arguments), foreign))


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


def _foreign_dtype(declared: str) -> np.dtype[Any] | None:
    """Return the dtype of a type such as ``tensor(bfloat16)`` that NumPy lacks; else None."""
    dtype = dtype_named(declared.removeprefix("tensor(").removesuffix(")"))
    return dtype if dtype is not None and _is_foreign(dtype) else None


def _as_ort_values(arguments: Mapping[str, object]) -> dict[str, Any] | None:
    """Return the arguments of a session as OrtValues; None unless all are numeric tensors."""
    from onnxruntime import OrtValue

    values: dict[str, Any] = {}
    for name, argument in arguments.items():
        if isinstance(argument, OrtValue):
            values[name] = argument
        elif isinstance(argument, np.ndarray) and not is_string(argument.dtype):
            values[name] = OrtValue.ortvalue_from_numpy(argument)
        else:
            return None
    return values


def _restored(returned: object, dtype: np.dtype[Any] | None) -> object:
    """Return an output; if ONNX Runtime returned its bytes as uint8, convert it to its dtype."""
    if dtype is None or not isinstance(returned, np.ndarray) or returned.dtype != np.uint8:
        return returned
    return returned.view(dtype)


def _array_of(value: Any) -> Array:
    """Return a copy of an OrtValue as an array; the OrtValue is a tensor in main memory."""
    element_type = value.element_type()
    if not _is_foreign(helper.tensor_dtype_to_np_dtype(element_type)):
        return np.asarray(value.numpy())
    data = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    tensor = onnx.TensorProto(data_type=element_type, dims=value.shape(), raw_data=data)
    return numpy_helper.to_array(tensor)


def _argument(value: Value) -> object:
    """Return an input in the form for ``InferenceSession.run``, if possible without a copy."""
    if value is None:
        return None
    if isinstance(value, list):
        return [item if item is None else _plain(item) for item in value]  # type: ignore[arg-type]
    if isinstance(value, dict):
        # ONNX Runtime needs the values of a map as numbers or strings, not as tensors.
        return {key: np.asarray(item).item() for key, item in value.items()}
    return _ort_value(value) if _is_foreign(value.dtype) else _plain(value)


def _plain(array: Array) -> Array:
    """Convert arrays whose byte order or ``U`` strings ONNX Runtime would misread."""
    dtype = np.dtype(object) if is_string(array.dtype) else array.dtype.newbyteorder("=")
    return np.asarray(array, dtype=dtype)


def _ort_value(array: Array) -> Any:
    from onnxruntime import OrtValue

    element_type = helper.np_dtype_to_tensor_dtype(array.dtype)
    array = np.asarray(array, order="C")
    if array.dtype.itemsize == 1:
        # ONNX Runtime takes the shape and the memory from one array, but expects elements with
        # fewer than 8 bits to be packed. The packed bytes fill the beginning of the memory.
        packed = np.frombuffer(numpy_helper.from_array(array).raw_data, dtype=np.uint8)
        memory = np.zeros(array.shape, dtype=np.uint8)
        memory.reshape(-1)[: packed.size] = packed
        array = memory
    return OrtValue.ortvalue_from_numpy_with_onnx_type(array, element_type)


def _is_foreign(dtype: np.dtype[Any]) -> bool:
    """Return whether a type is registered by ml_dtypes instead of being NumPy's own."""
    return dtype.isbuiltin == _REGISTERED


def unsupported_by_onnxruntime(error: BaseException) -> Unsupported | None:
    """Return Unsupported for an error about an unsupported feature; return None for a failure."""
    message = str(error)
    for pattern in PATTERNS.values():
        match = pattern.fullmatch(message)
        if match:
            groups = match.groupdict()
            operator = groups.get("operator", "")
            if "name" in groups:
                operator = f"{groups['domain'] or 'ai.onnx'}:{groups['name']}"
            return Unsupported(printable(groups["words"].strip(), lines=True), operator=operator)
    return None
