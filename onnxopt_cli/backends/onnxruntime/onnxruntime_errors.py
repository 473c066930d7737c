"""What ONNX Runtime says when it does not know something, apart from when it fails.

Its status codes do not tell: an unknown operator is a generic FAIL, or an INVALID_GRAPH. Only the
messages listed here are taken for "not supported"; whatever else it raises is a failure.
"""

from __future__ import annotations

import re

from onnxopt_cli.core.text import printable
from onnxopt_cli.errors import Unsupported

_FAIL = r"\[ONNXRuntimeError\] : 1 : FAIL : "
_INVALID_GRAPH = r"\[ONNXRuntimeError\] : 10 : INVALID_GRAPH : "

# For each thing that may not be supported what the whole message is. ``words`` is what a user needs
# of it, and ``name`` with ``domain``, or ``operator``, the operator where that is what is missing.
_WAYS = {
    "an operator, or a domain": _FAIL
    # One for each If, Loop or Scan around the node.
    + r"(?:Node \(.*?\) Op \(\w+\) \[TypeInferenceError\] "
    r"Graph attribute inferencing failed: )*"
    r"Fatal error: (?P<words>(?P<operator>\S+)\(-?\d+\) is not a registered function/op)",
    "an operator in a version of a domain that it knows": _INVALID_GRAPH
    + r"This is an invalid model\. In Node, \(.*?, \"(?P<domain>[^\"]*)\", -?\d+\) : .* , Error "
    r"(?P<words>No Op registered for (?P<name>\S+) with domain_version of \d+)"
    r"(?:\n\n==> Context: .*)?",
    "an IR version": _FAIL + r".*?/?model\.cc:\d+ .* "
    r"(?P<words>Unsupported model IR version: \d+, max supported IR version: \d+)",
    "an opset": _FAIL
    + r".*?model_load_utils\.h:\d+ .* ONNX Runtime only \*guarantees\* support for models "
    r"stamped with official released onnx opset versions\. (?P<words>Opset \d+ is under "
    r"development and support for this is limited\.) .*",
    "a kernel for an operator's version or element types, or a mode of it": (
        r"\[ONNXRuntimeError\] : 9 : NOT_IMPLEMENTED : (?P<words>.*)"
    ),
    "a node on the chosen provider, where session.disable_cpu_ep_fallback is 1": _FAIL
    + r"(?P<words>This session contains graph nodes that are assigned to the default CPU "
    r"EP, but fallback to CPU EP has been explicitly disabled by the user\.)",
    "an element type in a model": _FAIL + r"Exception during loading: "
    r"(?P<words>MLDataType for: \S+ is not currently registered or supported)",
    "an element type among what a session is given": (
        r"(?P<words>Numpy_type \d+ can't be converted to MLDataType\.)"
    ),
    "an element type among what a session returns": (
        r"(?P<words>No corresponding Numpy type for Tensor Type\. \S+)"
    ),
}
#: Every way known in which something is not supported, from ONNX Runtime 1.31's source and
#: behaviour: what it is, and what matches the whole message.
PATTERNS = {about: re.compile(way + r"\s*", re.DOTALL) for about, way in _WAYS.items()}


def unsupported_by_onnxruntime(error: BaseException) -> Unsupported | None:
    """Return what ONNX Runtime says that it does not support; None if the error is a failure."""
    message = str(error)
    for pattern in PATTERNS.values():
        match = pattern.fullmatch(message)
        if match:
            found = match.groupdict()
            operator = found.get("operator", "")
            if "name" in found:
                operator = f"{found['domain'] or 'ai.onnx'}:{found['name']}"
            return Unsupported(printable(found["words"].strip(), lines=True), operator=operator)
    return None
