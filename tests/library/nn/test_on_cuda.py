"""Triton kernels by Triton's interpreter, and the operators that stand for them where they do not run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from normless.nn.kernels._on_cuda import kernels_fit, multiplied, shifted


def test_kernels_in_the_interpreter() -> None:
    pytest.importorskip("triton")
    root = Path(__file__).parents[3]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(root / "tests" / "kernel_checks.py")]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_scalar_of_another_dtype_leaves_that_of_the_tensor(dtype: torch.dtype) -> None:
    x, scalar = torch.randn(3, 4, 5).to(dtype), torch.tensor([0.5], requires_grad=True)
    assert not kernels_fit(x, scalar)
    for y, expected in ((shifted(x, scalar), x + 0.5), (multiplied(x, scalar), x * 0.5)):
        assert torch.equal(y, expected)
        (gradient,) = torch.autograd.grad(y.double().sum(), [scalar])
        assert gradient.shape == (1,)
    assert shifted(x, None) is x
