"""Recognise ONNX Runtime's errors about unsupported features.

Status codes do not suffice: an unknown operator is a generic FAIL, or an INVALID_GRAPH. Only the
messages listed here count as unsupported; every other error is a failure.
"""

from __future__ import annotations

import re

from onnxopt_cli.core.text import printable
from onnxopt_cli.errors import Unsupported

_FAIL = r"\[ONNXRuntimeError\] : 1 : FAIL : "
_INVALID_GRAPH = r"\[ONNXRuntimeError\] : 10 : INVALID_GRAPH : "

# The complete message for each unsupported feature. The group ``words`` is the relevant part;
# ``name`` and ``domain``, or ``operator``, identify a missing operator.
_MESSAGES = {
    "an operator, or a domain": _FAIL
    # Repeated for each If, Loop or Scan around the node.
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
    "a mode, rank or element type that a kernel refuses when it is made or run": (
        r"\[ONNXRuntimeError\] : (?:1 : FAIL|2 : INVALID_ARGUMENT|6 : RUNTIME_EXCEPTION) : "
        r"(?:Exception during initialization: |Non-zero status code returned while running \w+ "
        r"node\. Name:'[^']*' Status Message: )"
        # The place in the source and the condition that does not hold.
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
#: Patterns of complete messages by unsupported feature, from ONNX Runtime 1.31's source and
#: behaviour.
PATTERNS = {
    feature: re.compile(message + r"\s*", re.DOTALL) for feature, message in _MESSAGES.items()
}


def unsupported_by_onnxruntime(error: BaseException) -> Unsupported | None:
    """Convert an error about an unsupported feature to Unsupported; return None for a failure."""
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
