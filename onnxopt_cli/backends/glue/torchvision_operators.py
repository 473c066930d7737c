"""torchvision with a torch that it was not built for.

torchvision's wheels need CUDA's libraries. Beside a build of torch for the CPU they load without
their operators in C++, and even the import fails, because torchvision refers to two operators that
are then undeclared. Declared, they raise torchvision's own error when they are called, as its other
operators do: "Couldn't load custom C++ ops".
"""

from __future__ import annotations

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


def import_torchvision() -> None:
    """Import torchvision, if necessary without its operators in C++."""
    import torch

    try:
        import torchvision
    except RuntimeError as error:
        if "operator torchvision::nms does not exist" not in str(error):
            raise
        library = torch.library.Library("torchvision", "FRAGMENT")
        for schema in _SCHEMAS:
            library.define(schema)
        _kept.append(library)
        import torchvision  # noqa: F401


# torch removes the operators of a library that is no longer referenced.
_kept: list[object] = []
