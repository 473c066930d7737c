"""What the names in an ONNX test directory say."""

from __future__ import annotations

import re
from collections.abc import Sequence

#: What the name of a light model begins with.
LIGHT_PREFIX = "light_"
#: The file with a directory's tolerance, and where its model is if it is missing.
DATA_FILE = "data.json"


def is_number(text: str) -> bool:
    """Tell whether a text is a number as it stands in names: no sign, no leading zeros."""
    return re.fullmatch(r"0|[1-9][0-9]{0,8}", text) is not None


def first_gap(numbers: Sequence[int]) -> int | None:
    """Return the first number from 0 on that ascending numbers leave out, or None."""
    return next((i for i, number in enumerate(numbers) if i != number), None)


def is_light_model(name: str) -> bool:
    """Tell whether a file name is that of a light model."""
    return name.startswith(LIGHT_PREFIX) and name.endswith(".onnx")
