"""Import torchvision beside a build of torch for the CPU.

torchvision's wheels need CUDA's libraries. Without them, torchvision does not load its C++
operators, and its import fails, because it refers to two of these operators, which are not
declared. This module declares both. A call of either, like that of any other C++ operator, then
raises torchvision's error "Couldn't load custom C++ ops".
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
