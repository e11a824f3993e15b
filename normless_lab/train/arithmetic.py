"""The number formats that a run computes in, by its precision and its device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from normless._internal.exclusive import borrowing
from normless_lab.train.settings import Precision

_FORMATS: dict[Precision, str] = {
    "32-true": "float32",
    "64-true": "float64",
    "bf16-mixed": "bfloat16 by autocast, weights and sums float32",
    "bf16-true": "bfloat16",
}
# Below float32's smallest normal number, 2⁻¹²⁶.
DENORMAL = 1e-40


@borrowing
def tensor_cores(device: torch.device) -> Iterator[None]:
    """Multiply float32 matrices in TF32 on a GPU's tensor cores within the context, as for convolutions.

    TF32 has the exponent of float32 and 10 bits of its fraction; sums are float32. torch takes it for convolutions by
    default and not for products of matrices. `NVIDIA_TF32_OVERRIDE=0` in the environment puts both off, as ever.
    """
    if device.type != "cuda":
        yield
        return
    before = torch.get_float32_matmul_precision()
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


@contextmanager
def denormals_flushed() -> Iterator[None]:
    """Treat denormal numbers as 0 within the context, as most accelerators do; then restore the former setting.

    Processors are a hundred times slower on them. A signal or gradient that shrinks from block to block, as with sums
    times √½, is denormal in some fifty blocks of a very deep network before it is 0. Without effect where the
    processor does not support it. A library's threads inherit the setting when they start and keep it: enter before
    the first operator to reach those of oneDNN's convolutions.
    """
    before = are_flushed()
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


def are_flushed() -> bool:
    """Return whether torch's operators treat denormal numbers as 0 in this thread."""
    return not torch.full((1,), DENORMAL, dtype=torch.float32).mul(1.0).view(torch.int32).item()
