"""The JSON Schema of a log's records: printed for other tools, and what logs are checked by."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from onnxopt_cli.core.text import printable

if TYPE_CHECKING:
    import jsonschema_rs

#: The version that a log's header states.
SCHEMA = "onnxopt.log/1"


def log_schema() -> dict[str, Any]:
    """Return the JSON Schema (Draft 2020-12) of one line of a log."""
    schema: dict[str, Any] = json.loads(
        resources.files(__package__).joinpath("schema.json").read_text("utf-8")
    )
    return schema


def check_record(record: object) -> str:
    """Check one record, and return its kind.

    Raises:
        ValueError: saying what contradicts the schema, and in which field.
    """
    kinds = _validators()
    kind = record.get("record") if isinstance(record, dict) else None
    if not isinstance(kind, str) or kind not in kinds:
        raise ValueError(f"found no record of a log, expected one of {', '.join(kinds)}")
    error = next(kinds[kind].iter_errors(record), None)
    if error is not None:
        field = ".".join(map(str, error.instance_path)) or kind
        raise ValueError(printable(f"{field}: {error.message[:200]}"))
    return kind


@cache
def _validators() -> dict[str, jsonschema_rs.Validator]:
    import jsonschema_rs

    schema = log_schema()
    definitions = schema["$defs"]
    references = [part["$ref"] for part in schema["oneOf"]]
    return {
        reference.rpartition("/")[2]: jsonschema_rs.validator_for(
            {"$schema": schema["$schema"], "$ref": reference, "$defs": definitions}
        )
        for reference in references
    }
