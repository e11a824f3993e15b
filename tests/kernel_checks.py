"""Each Triton kernel against autograd in float64; run as a script, on CPU tensors by Triton's interpreter."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import torch
from torch import Tensor

from normless.nn.kernels._on_cuda import ScaledOnCuda, ShiftedOnCuda, ShiftedReLUOnCuda

# Some are no multiple of a program's block.
SHAPES = ((7,), (3, 5, 7, 11), (2, 16, 16, 16), (3, 1367))
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
BIASES = ((0.31, -0.17), (None, 0.7), (-0.2, None), (0.0, 0.0))
WEIGHTS = ((16, 16, 3, 3), (10, 7), (1, 5, 1, 1), (4, 300, 3, 3))


def drawn(shape: tuple[int, ...], dtype: torch.dtype, device: str, *, last: bool) -> Tensor:
    """Normal values, with channels last on request."""
    x = torch.randn(shape, device=device).to(dtype)
    return x.to(memory_format=torch.channels_last) if last and x.dim() == 4 else x


def scalar(value: float | None, device: str) -> Tensor | None:
    return None if value is None else torch.tensor([value], device=device, requires_grad=True)


def assert_near(actual: Tensor, expected: Tensor, dtype: torch.dtype, terms: int = 1) -> None:
    """Within rounding of a dtype, relative to the norm; of sums, which cancel, to 1e-5."""
    distance = (actual.double() - expected.double()).norm()
    size = expected.double().norm()
    bound = 1e-5 * (size + terms**0.5) if terms > 1 else 2 * torch.finfo(dtype).eps * size
    assert distance <= bound, (distance, size, dtype, expected.shape)


def assert_gradients(y: Tensor, inputs: list[Tensor], reference: Tensor, wide: list[Tensor], last: bool) -> None:
    """Gradients in a random direction, twice the same."""
    assert_near(y, reference, y.dtype)
    direction = drawn(tuple(y.shape), y.dtype, str(y.device), last=last) + 0.25
    found = torch.autograd.grad(y, inputs, direction, retain_graph=True)
    again = torch.autograd.grad(y, inputs, direction)
    wanted = torch.autograd.grad(reference, wide, direction.double())
    for index, (one, other, expected) in enumerate(zip(found, again, wanted, strict=True)):
        assert torch.equal(one, other)
        assert one.shape == expected.shape
        assert one.dtype == inputs[index].dtype
        assert_near(one, expected, inputs[index].dtype, y.numel() // one.numel())


def check_shifted_relu(
    shape: tuple[int, ...], dtype: torch.dtype, biases: tuple[float | None, ...], device: str, last: bool
) -> None:
    x = drawn(shape, dtype, device, last=last).requires_grad_()
    before, after = (scalar(value, device) for value in biases)
    y = ShiftedReLUOnCuda.apply(x, before, after)
    assert (y.dtype, y.stride()) == (x.dtype, x.stride())
    inputs = [x, *(part for part in (before, after) if part is not None)]
    wide = [one.detach().double().requires_grad_() for one in inputs]
    shifts = iter(wide[1:])
    inside = wide[0] if before is None else wide[0] + next(shifts)
    reference = inside.relu() if after is None else inside.relu() + next(shifts)
    assert_gradients(y, inputs, reference, wide, last)
    # Exactly where x + b₁ is above 0, also where the result is rounded.
    (passed,) = torch.autograd.grad(ShiftedReLUOnCuda.apply(x, before, after).sum(), [x])
    assert torch.equal(passed, (inside > 0).to(dtype))


def check_shifted(shape: tuple[int, ...], dtype: torch.dtype, device: str, last: bool) -> None:
    x, shift = drawn(shape, dtype, device, last=last).requires_grad_(), scalar(0.3, device)
    assert shift is not None
    y = ShiftedOnCuda.apply(x, shift)
    assert (y.dtype, y.stride()) == (x.dtype, x.stride())
    wide = [one.detach().double().requires_grad_() for one in (x, shift)]
    assert_gradients(y, [x, shift], wide[0] + wide[1], wide, last)


def check_scaled(shape: tuple[int, ...], dtype: torch.dtype, each: bool, device: str, last: bool) -> None:
    weight = drawn(shape, torch.float32, device, last=last).requires_grad_()
    factor = torch.randn(shape[0] if each else 1, device=device, requires_grad=True)
    y = ScaledOnCuda.apply(weight, factor, dtype)
    assert (y.dtype, y.stride()) == (dtype, weight.stride())
    wide = [one.detach().double().requires_grad_() for one in (weight, factor)]
    column = wide[1].reshape(-1, *[1] * (weight.dim() - 1))
    assert_gradients(y, [weight, factor], wide[0] * column, wide, last)


def check_values_that_are_not_numbers(device: str) -> None:
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), 1.0], device=device, requires_grad=True)
    y = ShiftedReLUOnCuda.apply(x, scalar(0.5, device), scalar(0.25, device))
    torch.testing.assert_close(y, torch.relu(x + 0.5) + 0.25, equal_nan=True)
    (gradient,) = torch.autograd.grad(y.sum(), [x])
    assert gradient.tolist() == [1.0, 1.0, 0.0, 1.0]


def check_second_derivatives(device: str) -> None:
    """Of a function that is not linear in what the kernels return, against operators."""
    x, weight = (torch.randn(4, 6, device=device, requires_grad=True) for _ in range(2))
    before, after, factor = (scalar(value, device) for value in (0.3, -0.2, 1.5))
    inputs = [x, weight, before, after, factor]

    def value(kernels: bool) -> Tensor:
        if kernels:
            h = ScaledOnCuda.apply(weight, factor, torch.float32)
            y = ShiftedOnCuda.apply(ShiftedReLUOnCuda.apply(x * h, before, after), before)
        else:
            y = torch.relu(x * (weight * factor) + before) + after + before
        return (y**3).sum()

    results = []
    for kernels in (False, True):
        first = torch.autograd.grad(value(kernels), inputs, create_graph=True)
        second = torch.autograd.grad(sum((one**2).sum() for one in first), inputs)
        results.append([*first, *second])
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)


def cases() -> Iterator[tuple[tuple[int, ...], torch.dtype, bool]]:
    """Shapes of activations, dtypes, and whether channels are last; each value of one with some of the others."""
    every = list(product(SHAPES, DTYPES, (False, True)))
    return iter(every[::5])


if __name__ == "__main__":
    torch.manual_seed(0)
    for shape, dtype, last in cases():
        check_shifted(shape, dtype, "cpu", last)
        for biases in BIASES:
            check_shifted_relu(shape, dtype, biases, "cpu", last)
    for weight, dtype, each in list(product(WEIGHTS, DTYPES, (False, True)))[::5]:
        check_scaled(weight, dtype, each, "cpu", True)
    check_values_that_are_not_numbers("cpu")
    check_second_derivatives("cpu")
