"""The number formats that a run computes in, by its precision and its device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from normless_lab.train.settings import Precision

_FORMATS: dict[Precision, str] = {
    "32-true": "float32",
    "64-true": "float64",
    "bf16-mixed": "bfloat16 by autocast, weights and sums float32",
    "bf16-true": "bfloat16",
}


@contextmanager
def tensor_cores(device: torch.device) -> Iterator[None]:
    """Multiply float32 matrices in TF32 on a GPU's tensor cores within the context, as for convolutions.

    TF32 has the exponent of float32 and 10 bits of its fraction; sums are float32. torch takes it for convolutions by
    default and not for products of matrices. `NVIDIA_TF32_OVERRIDE=0` in the environment puts both off, as ever.
    """
    before = torch.get_float32_matmul_precision()
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def arithmetic(precision: Precision, device: torch.device) -> str:
    """The number formats in words: `float32`, or on a card `float32 (convolutions and products in TF32)`."""
    name = _FORMATS[precision]
    return f"{name} (convolutions and products in TF32)" if name == "float32" and device.type == "cuda" else name


def device_name(device: torch.device) -> str:
    """The name of a card, or the type of another device."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
