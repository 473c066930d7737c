"""Write ``docs/gallery.md`` from the rows of the gallery.

With ``--check``, the script writes nothing, and exits with 1 if the document is not up to date.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from onnxopt_cli.suites.gallery.gallery_suite import (
    Defect,
    Observation,
    TestedRuntime,
    runtimes,
)

DOCUMENT = Path(__file__).parent.parent / "docs" / "gallery.md"
# The suite of the node cases that ONNX publishes.
_PUBLISHED = "onnx-node"

_INTRODUCTION = """\
# Gallery of defects

<!-- Written by scripts/write_gallery_document.py from onnxopt_cli/suites/gallery/gallery.yaml. -->

{defects} defects of {runtimes} public runtimes, found with `onnxopt`. Each row is one deviation
from ONNX's specification, with a case that shows it. {features} more rows are about features of
recent opsets: the runtime accepts the feature without an error, but ignores it. These rows are
counted and listed [separately](#ignored-features-of-recent-opsets).

The rows state facts about versions, and do not rank runtimes, which support different operators
and were tested to different extents. Later versions may have corrected a defect.

- `onnxopt run gallery -b adapter:openvino` runs the cases of OpenVINO's rows, and exits with 1 if
  any of the defects exists. A backend without rows runs the cases of all rows.
- `onnxopt run gallery/openvino -b BACKEND` runs OpenVINO's rows on any backend, and
  `gallery/openvino/topk_equal_values` is a single row. `onnxopt list gallery` lists all rows.
- `python scripts/check_gallery.py openvino` compares the outputs of a runtime with its rows: each
  defect is reproduced, fixed, or different. The column *checked* of the [summary](#summary) is the
  date on which the script reproduced every row of a runtime (Linux, x86_64). The rows of WONNX and
  WebGPU need a Vulkan driver; the column *setting* names the driver that was used, which runs on
  the CPU.

## How the right values were decided

No right value is taken from `onnxopt` itself. If the case is `onnx-node/...`, the right value is
taken from the output that ONNX publishes. For all other cases, `scripts/gallery_oracle.py` computes
the right value in double from the text of the specification. The functions of the script share no
code with `onnxopt` or onnx's reference. A test compares the right value of every row with its
source.

The gallery omits three kinds of differences:

- contested readings, about which the specification, onnx's reference and several runtimes disagree:
  `Resize` with `align_corners` and a scale that leaves a fraction, `RoiAlign` with `mode=max`,
  `MaxUnpool` with `output_shape`, and `GridSample` with `mode=cubic` and `padding_mode=border`;
- results that are less accurate than usual, such as `Erf` near 0 with an absolute error of 1e-7;
- conversions between NumPy and a runtime without bfloat16 or unsigned integers.
"""
_FOUND_BY = """\
## Defects that ONNX's own cases miss

`onnx-node` does not show {missed} of the {all} rows. For each of these rows, the tables name a
suite that shows the defect: `operators`, `conformance`, or `gallery` if only the row's own case
shows it. {reference} of these rows are defects of onnx's reference, which computes the outputs of
`onnx-node`. No case of `onnx-node` has the element types, the values or the older operator versions
of the other rows.
"""
_FEATURES = """\
## Ignored features of recent opsets

Each runtime accepts the attribute or type without an error, and computes as if the attribute or
type were absent.
"""


def document() -> str:
    """Return the text of the document."""
    rows = [row for runtime in runtimes() for row in runtime.defects]
    defects = [row for row in rows if row.feature is None]
    missed = [row for row in rows if is_missed(row)]
    reference = [
        row
        for runtime in runtimes()
        if runtime.adapter == "onnx-reference"
        for row in runtime.defects
        if is_missed(row)
    ]
    parts = [
        _INTRODUCTION.format(
            defects=len(defects), runtimes=len(runtimes()), features=len(rows) - len(defects)
        ),
        _FOUND_BY.format(missed=len(missed), all=len(rows), reference=len(reference)),
        "## Summary\n\n" + "\n".join(summary()) + "\n",
        *("\n".join(section(runtime)) + "\n" for runtime in by_title()),
        _FEATURES + "\n" + "\n".join(features()) + "\n",
    ]
    return "\n".join(parts)


def by_title() -> Sequence[TestedRuntime]:
    """Return the runtimes in alphabetical order."""
    return sorted(runtimes(), key=lambda runtime: runtime.title.lower())


def is_missed(row: Defect) -> bool:
    """Return whether ONNX's own cases do not show the defect."""
    return _PUBLISHED not in row.found_by


def summary() -> Iterator[str]:
    """Yield the lines of the table of runtimes."""
    columns = "runtime", "adapter", "version", "setting", "checked", "defects", "not in `onnx-node`"
    yield line(*columns, "ignored features")
    yield "|---|---|---|---|---|---:|---:|---:|"
    for runtime in by_title():
        features = sum(row.feature is not None for row in runtime.defects)
        missed = sum(map(is_missed, runtime.defects))
        cells = (
            f"[{runtime.title}](#{anchor(runtime)})",
            f"`{runtime.adapter}`",
            f"{runtime.distribution} {runtime.version}",
            runtime.setting,
            str(runtime.checked),
            str(len(runtime.defects) - features),
            str(missed or ""),
            str(features or ""),
        )
        yield line(*cells)


def anchor(runtime: TestedRuntime) -> str:
    """Return the anchor of a runtime's section."""
    letters = (letter for letter in runtime.title.lower() if letter.isalnum() or letter in " -_")
    return "".join(letters).replace(" ", "-")


def section(runtime: TestedRuntime) -> Iterator[str]:
    """Yield the lines about a runtime."""
    yield f"## {runtime.title}"
    yield ""
    yield (
        f"{runtime.distribution} {runtime.version}, {runtime.setting}; the rows are "
        f"`gallery/{runtime.adapter}/...`."
    )
    yield ""
    yield "| row | defect | case | wrong | right | upstream |"
    yield "|---|---|---|---|---|---|"
    for row in runtime.defects:
        if row.feature is None:
            yield line(
                f"`{row.name}`",
                sentence(row),
                case(row),
                *values(row),
                row.upstream,
            )


def features() -> Iterator[str]:
    """Yield the lines of the table of ignored features."""
    yield "| row | opset | defect | case | wrong | right | upstream |"
    yield "|---|---|---|---|---|---|---|"
    rows = [
        (runtime, row)
        for runtime in by_title()
        for row in runtime.defects
        if row.feature is not None
    ]
    for runtime, row in sorted(rows, key=lambda pair: pair[1].operator):
        yield line(
            f"`{runtime.adapter}/{row.name}`",
            str(row.feature),
            sentence(row),
            case(row),
            *values(row),
            row.upstream,
        )


def sentence(row: Defect) -> str:
    """Return the operator, the defect and, if ONNX's cases miss it, the suites that show it."""
    suites = f" *(found by {', '.join(row.found_by)})*" if is_missed(row) else ""
    return f"`{row.operator}`: {row.defect}{suites}"


def case(row: Defect) -> str:
    """Return the case of a row; the gallery's own cases have the id of the row."""
    return f"`{row.case}`" if "/" in row.case else "own"


def values(row: Defect) -> tuple[str, str]:
    """Return the wrong value with its position, and the right value."""
    place = f"`{row.output}{list(row.element) if row.element else ''}`: "
    return place + shown(row.wrong), shown(row.right)


def shown(observation: Observation) -> str:
    """Return a text that describes an observation."""
    if isinstance(observation, Mapping):
        ((kind, value),) = observation.items()
        return f"shape {value}" if kind == "shape" else str(value)
    return str(observation)


def line(*cells: str) -> str:
    """Return a line of a Markdown table."""
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check the document; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only check the file; do not write")
    options = parser.parse_args(arguments)
    text = document()
    if not options.check:
        DOCUMENT.write_text(text, "utf-8")
        return 0
    current = DOCUMENT.read_text("utf-8") if DOCUMENT.exists() else ""
    if current != text:
        print(f"{DOCUMENT} is not up to date: run scripts/write_gallery_document.py")
    return int(current != text)


if __name__ == "__main__":
    sys.exit(main())
