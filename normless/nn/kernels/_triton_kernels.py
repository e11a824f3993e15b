"""Triton kernels for scalar biases and multipliers, each one pass over memory.

Tensors are read in the order of their storage, which is dense. Arithmetic and sums are in float32. A sum over all
elements is the same in every run: each program writes its part, and the last program to finish adds the parts in
order. `counter` counts the programs that have finished; it is zero before and after.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# Elements of one program's step, and the most programs that share a sum.
BLOCK = 2048
MOST_PROGRAMS = 1024


@triton.jit  # type: ignore[untyped-decorator]
def _add_parts(parts: tl.tensor, total: tl.tensor, most: tl.constexpr) -> None:
    """Write the sum of the parts of all programs."""
    rows = tl.arange(0, most)
    values = tl.load(parts + rows, mask=rows < tl.num_programs(0), other=0.0, cache_modifier=".cg")
    tl.store(total, tl.sum(values))


@triton.jit  # type: ignore[untyped-decorator]
def _shifted_relu(
    x: tl.tensor, before: tl.tensor, after: tl.tensor, y: tl.tensor, counter: tl.tensor, size: tl.tensor,
    has_before: tl.constexpr, has_after: tl.constexpr, bits: tl.constexpr, block: tl.constexpr,
) -> None:  # fmt: skip
    at = tl.program_id(0) * block + tl.arange(0, block)
    value = tl.load(x + at, mask=at < size).to(tl.float32)
    shift = tl.load(after).to(tl.float32) if has_after else 0.0
    if has_before:
        value += tl.load(before).to(tl.float32)
    # A NaN is not below 0 and is kept.
    rounded = (tl.where(value <= 0, 0.0, value) + shift).to(y.dtype.element_ty)
    # A value above 0 is rounded to above the least value, from which backward reads the sign of x + b₁.
    least = (tl.zeros([block], tl.float32) + shift).to(y.dtype.element_ty)
    word = least.to(bits, bitcast=True)
    next_word = tl.where(least == 0, 1, tl.where(least > 0, word + 1, word - 1)).to(bits)
    rounded = tl.where((value > 0) & (rounded == least), next_word.to(y.dtype.element_ty, bitcast=True), rounded)
    tl.store(y + at, rounded, mask=at < size)
    if tl.program_id(0) == 0:
        tl.store(counter, 0)


@triton.jit  # type: ignore[untyped-decorator]
def _shifted_relu_backward(
    gradient: tl.tensor, y: tl.tensor, after: tl.tensor, result: tl.tensor, parts: tl.tensor, counter: tl.tensor,
    of_before: tl.tensor, of_after: tl.tensor, size: tl.tensor, steps: tl.tensor,
    has_after: tl.constexpr, block: tl.constexpr, most: tl.constexpr,
) -> None:  # fmt: skip
    program = tl.program_id(0)
    least = tl.load(after).to(y.dtype.element_ty).to(tl.float32) if has_after else 0.0
    passed_sum = tl.zeros([block], tl.float32)
    gradient_sum = tl.zeros([block], tl.float32)
    for step in range(steps):
        at = (program * steps + step) * block + tl.arange(0, block)
        inside = at < size
        value = tl.load(gradient + at, mask=inside, other=0.0).to(tl.float32)
        output = tl.load(y + at, mask=inside, other=0.0).to(tl.float32)
        passed = tl.where(output <= least, 0.0, value)
        tl.store(result + at, passed, mask=inside)
        passed_sum += passed
        gradient_sum += value
    tl.store(parts + program, tl.sum(passed_sum))
    tl.store(parts + most + program, tl.sum(gradient_sum))
    tl.debug_barrier()
    if tl.atomic_add(counter, 1) == tl.num_programs(0) - 1:
        _add_parts(parts, of_before, most)
        _add_parts(parts + most, of_after, most)
        tl.store(counter, 0)


@triton.jit  # type: ignore[untyped-decorator]
def _shifted(
    x: tl.tensor, shift: tl.tensor, y: tl.tensor, counter: tl.tensor, size: tl.tensor, block: tl.constexpr
) -> None:
    at = tl.program_id(0) * block + tl.arange(0, block)
    value = tl.load(x + at, mask=at < size).to(tl.float32)
    tl.store(y + at, value + tl.load(shift).to(tl.float32), mask=at < size)
    if tl.program_id(0) == 0:
        tl.store(counter, 0)


@triton.jit  # type: ignore[untyped-decorator]
def _total(
    x: tl.tensor,
    parts: tl.tensor,
    counter: tl.tensor,
    total: tl.tensor,
    size: tl.tensor,
    steps: tl.tensor,
    block: tl.constexpr,
    most: tl.constexpr,
) -> None:
    program = tl.program_id(0)
    values = tl.zeros([block], tl.float32)
    for step in range(steps):
        at = (program * steps + step) * block + tl.arange(0, block)
        values += tl.load(x + at, mask=at < size, other=0.0).to(tl.float32)
    tl.store(parts + program, tl.sum(values))
    tl.debug_barrier()
    if tl.atomic_add(counter, 1) == tl.num_programs(0) - 1:
        _add_parts(parts, total, most)
        tl.store(counter, 0)


@triton.jit  # type: ignore[untyped-decorator]
def _scaled(
    weight: tl.tensor,
    factor: tl.tensor,
    scaled: tl.tensor,
    counter: tl.tensor,
    size: tl.tensor,
    row: tl.tensor,
    each: tl.constexpr,
    block: tl.constexpr,
) -> None:
    at = tl.program_id(0) * block + tl.arange(0, block)
    value = tl.load(weight + at, mask=at < size).to(tl.float32)
    if each:
        value *= tl.load(factor + at // row, mask=at < size).to(tl.float32)
    else:
        value *= tl.load(factor).to(tl.float32)
    tl.store(scaled + at, value, mask=at < size)
    if tl.program_id(0) == 0:
        tl.store(counter, 0)


@triton.jit  # type: ignore[untyped-decorator]
def _scaled_backward(
    gradient: tl.tensor, weight: tl.tensor, factor: tl.tensor, result: tl.tensor, parts: tl.tensor,
    counter: tl.tensor, of_factor: tl.tensor, size: tl.tensor, steps: tl.tensor,
    block: tl.constexpr, most: tl.constexpr,
) -> None:  # fmt: skip
    program = tl.program_id(0)
    scale = tl.load(factor).to(tl.float32)
    products = tl.zeros([block], tl.float32)
    for step in range(steps):
        at = (program * steps + step) * block + tl.arange(0, block)
        value = tl.load(gradient + at, mask=at < size, other=0.0).to(tl.float32)
        products += value * tl.load(weight + at, mask=at < size, other=0.0).to(tl.float32)
        tl.store(result + at, value * scale, mask=at < size)
    tl.store(parts + program, tl.sum(products))
    tl.debug_barrier()
    if tl.atomic_add(counter, 1) == tl.num_programs(0) - 1:
        _add_parts(parts, of_factor, most)
        tl.store(counter, 0)


@triton.jit  # type: ignore[untyped-decorator]
def _scaled_rows_backward(
    gradient: tl.tensor,
    weight: tl.tensor,
    factor: tl.tensor,
    result: tl.tensor,
    of_factor: tl.tensor,
    row: tl.tensor,
    block: tl.constexpr,
) -> None:
    program = tl.program_id(0)
    scale = tl.load(factor + program).to(tl.float32)
    products = tl.zeros([block], tl.float32)
    for start in range(0, row, block):
        inside = start + tl.arange(0, block) < row
        at = program * row + start + tl.arange(0, block)
        value = tl.load(gradient + at, mask=inside, other=0.0).to(tl.float32)
        products += value * tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(result + at, value * scale, mask=inside)
    tl.store(of_factor + program, tl.sum(products))


_BITS = {torch.float32: tl.int32, torch.float16: tl.int16, torch.bfloat16: tl.int16}


def _blocks(size: int) -> tuple[int]:
    return ((size + BLOCK - 1) // BLOCK,)


def _shares(size: int) -> tuple[int, int]:
    """Return the number of programs that share a sum, and the steps of each."""
    blocks = (size + BLOCK - 1) // BLOCK
    steps = (blocks + MOST_PROGRAMS - 1) // MOST_PROGRAMS
    return (blocks + steps - 1) // steps, steps


def _parts(x: Tensor, sums: int) -> Tensor:
    return x.new_empty(sums * MOST_PROGRAMS, dtype=torch.float32)


def counter_for(x: Tensor) -> Tensor:
    """Return a counter, which a forward kernel sets to zero."""
    return x.new_empty(1, dtype=torch.int32)


def shifted_relu(x: Tensor, before: Tensor | None, after: Tensor | None, counter: Tensor) -> Tensor:
    """Return relu(x + b₁) + b₂ in the dtype and memory format of x."""
    y, size = torch.empty_like(x), x.numel()
    has_before, has_after = before is not None, after is not None
    _shifted_relu[_blocks(size)](
        x, before if has_before else x, after if has_after else x, y, counter, size,
        has_before, has_after, _BITS[x.dtype], BLOCK,
    )  # fmt: skip
    return y


def shifted_relu_backward(
    gradient: Tensor, y: Tensor, after: Tensor | None, counter: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x, b₁ and b₂, those of the biases in a dtype and of shape (1,)."""
    result, size = torch.empty_like(y), y.numel()
    of_before, of_after = (y.new_empty(1, dtype=dtype) for _ in range(2))
    programs, steps = _shares(size)
    _shifted_relu_backward[(programs,)](
        gradient, y, y if after is None else after, result, _parts(y, 2), counter, of_before, of_after,
        size, steps, after is not None, BLOCK, MOST_PROGRAMS,
    )  # fmt: skip
    return result, of_before, of_after


def shifted(x: Tensor, shift: Tensor, counter: Tensor) -> Tensor:
    """Return x + b in the dtype and memory format of x."""
    y, size = torch.empty_like(x), x.numel()
    _shifted[_blocks(size)](x, shift, y, counter, size, BLOCK)
    return y


def total(x: Tensor, counter: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the sum of all elements, shape (1,)."""
    result, size = x.new_empty(1, dtype=dtype), x.numel()
    programs, steps = _shares(size)
    _total[(programs,)](x, _parts(x, 1), counter, result, size, steps, BLOCK, MOST_PROGRAMS)
    return result


def scaled(weight: Tensor, factor: Tensor, counter: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the weight times one factor, or one for each index of its first axis, in a dtype."""
    result, size = torch.empty_like(weight, dtype=dtype), weight.numel()
    each = factor.numel() > 1
    _scaled[_blocks(size)](weight, factor, result, counter, size, size // len(weight), each, BLOCK)
    return result


def scaled_backward(gradient: Tensor, weight: Tensor, factor: Tensor, counter: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of the weight and of the factor."""
    result, of_factor, size = torch.empty_like(weight), torch.empty_like(factor), weight.numel()
    if factor.numel() > 1:
        row = size // len(weight)
        block = min(BLOCK, triton.next_power_of_2(row))
        _scaled_rows_backward[(len(weight),)](gradient, weight, factor, result, of_factor, row, block)
    else:
        programs, steps = _shares(size)
        _scaled_backward[(programs,)](
            gradient, weight, factor, result, _parts(weight, 1), counter, of_factor, size, steps, BLOCK, MOST_PROGRAMS
        )
    return result, of_factor
