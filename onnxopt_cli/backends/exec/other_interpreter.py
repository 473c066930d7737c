"""Load a plugin in another Python interpreter, and run it by the protocol of commands.

The interpreter that the option ``python`` names executes this file. The interpreter needs Python
3.9, NumPy 1.24 and onnx 1.14 or newer, but no installed onnxopt. Therefore, all modules that this
file imports must support these versions.
"""

from __future__ import annotations

import json
import os
import re
import sys
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnxopt_cli.backends.specification import Specification


def interpreter_command(specification: Specification) -> list[str]:
    """Return the command that runs a plugin in the interpreter that its option ``python`` names."""
    device = specification.options.get("device")
    options = {"device": device} if device else {}
    fields = {**vars(specification), "options": options}
    return [specification.options["python"], str(Path(__file__)), json.dumps(fields)]


def main() -> None:
    """Respond to requests until the end of standard input."""
    # The plugin must not import the modules beside this file.
    del sys.path[0]
    # onnxopt need not be installed in this interpreter, so the package is created here.
    package = ModuleType("onnxopt_cli")
    package.__path__ = [str(Path(__file__).parents[2])]
    sys.modules["onnxopt_cli"] = package
    # Separate the plugin's output from responses, and the plugin's input from requests.
    requests, answers = os.dup(0), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        import onnx  # noqa: F401 - check that it is installed

        from onnxopt_cli.core.codec import (
            MessageReader,
            ValueWriter,
            pack,
            read_some,
        )
    except Exception as error:  # noqa: BLE001 - a package that is missing or too old
        with os.fdopen(requests) as lines:
            response = {"id": json.loads(lines.readline())["id"], "error": str(error)}
        answers.write(json.dumps(response).encode() + b"\n")
        answers.flush()
        return

    reader = MessageReader()
    backend = None
    while True:
        try:
            request, payload = reader.receive(partial(read_some, requests))
        except EOFError:
            break
        if request["request"] == "shutdown":
            break
        try:
            values = ValueWriter()
            if backend is None:
                backend, answer = _start()
            else:
                answer = _run(backend, request, payload, values)
            message = values.message({"id": request["id"], **answer})
        except BaseException as error:  # noqa: BLE001 - a plugin may raise anything
            message = pack({"id": request["id"], **_refusal(error)})
        answers.writelines(message)
        answers.flush()


def _start() -> tuple[Any, dict[str, Any]]:
    from onnxopt_cli.backends.plugin import load_plugin
    from onnxopt_cli.backends.specification import Specification
    from onnxopt_cli.core.codec import PROTOCOL
    from onnxopt_cli.core.values import DTYPES

    specification = Specification(**json.loads(sys.argv[1]))
    backend = load_plugin(specification)
    identity = backend.version
    if specification.runtimes:
        from importlib.metadata import version as version_of

        identity = ", ".join(f"{name} {version_of(name)}" for name in specification.runtimes)
    name, _, version = identity.rpartition(" ")
    hello = {
        "protocol": PROTOCOL,
        "name": (name or Path(specification.source).stem)[:100],
        "version": (version or "of unknown version")[:100],
        "dtypes": list(DTYPES),
        "devices": [specification.options.get("device", "CPU")],
    }
    stated = backend.unsupported
    if stated is not None:
        pattern, flags = getattr(stated, "pattern", stated), getattr(stated, "flags", 0)
        letters = "".join(letter for letter in "ims" if flags & re.RegexFlag[letter.upper()])
        hello["unsupported"] = f"(?{letters}){pattern}" if letters else pattern
    return backend, hello


def _run(backend: Any, request: dict[str, Any], payload: memoryview, values: Any) -> dict[str, Any]:
    import onnx

    from onnxopt_cli.backends.protocol import normalise_outputs
    from onnxopt_cli.core.codec import ValueWriter, read_run
    from onnxopt_cli.errors import ProtocolBreach, Unsupported

    content = ValueWriter(inline=True).put
    try:
        data, inputs = read_run(request, payload)
    except ProtocolBreach as error:
        # The interpreter's version of NumPy or ml_dtypes, for example, may lack an element type.
        raise Unsupported(f"the interpreter {error.message}") from None
    model = onnx.ModelProto.FromString(bytes(data))
    before = {name: content(value) for name, value in inputs.items()}
    outputs = normalise_outputs(backend.prepare(model).run(inputs), model.graph.output)
    return {
        "outputs": [values.put(output) for output in outputs],
        "changed": [name for name, value in inputs.items() if content(value) != before[name]],
    }


def _refusal(error: BaseException) -> dict[str, Any]:
    from onnxopt_cli.core.text import exception_text
    from onnxopt_cli.errors import OnnxoptError, Unsupported

    text = error.message if isinstance(error, OnnxoptError) else exception_text(error)
    if isinstance(error, Unsupported):
        operator = {"operator": error.operator} if error.operator else {}
        return {"unsupported": text, **operator}
    return {"error": text}


if __name__ == "__main__":
    main()
