"""Gradients by class: masks at the logits, sent back one by one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from normless.models import wide_resnet
from normless_papers.probes.class_gradients import classwise_elements, classwise_gradients, for_each_class

Gradients = dict[str, Tensor]


def collected(model: nn.Module, x: Tensor, targets: Tensor, **options: object) -> dict[int, Gradients]:
    found: dict[int, Gradients] = {}
    for_each_class(model, x, targets, lambda index, _, gradients: found.update({index: gradients}), **options)  # type: ignore[arg-type]
    return found


@settings(max_examples=15, deadline=None)
@given(st.integers(2, 5), st.integers(1, 4), st.integers(2, 5), st.integers(0, 10**6))
def test_understanding_bn_class_wise_mask_sums_to_the_whole(
    examples: int, width: int, classes: int, seed: int
) -> None:
    """understanding-bn/class-wise-mask: by linearity the masked gradients of all classes sum to the full gradient."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, classes)).double()
    x, targets = torch.randn(examples, 3, dtype=torch.float64), torch.randint(0, classes, (examples,))
    found = collected(model, x, targets)
    assert sorted(found) == list(range(classes))
    F.cross_entropy(model(x), targets).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        total = sum(found[index][name] for index in found)
        torch.testing.assert_close(total, parameter.grad, rtol=1e-9, atol=1e-12)


def test_each_class_is_the_gradient_of_its_logits_alone() -> None:
    model, x, targets = wide_resnet(10, 1), torch.randn(4, 3, 8, 8), torch.randint(0, 10, (4,))
    found = collected(model, x, targets, parameters=["blocks.0.conv1.weight"], classes=[7, 2])
    assert list(found) == [7, 2]
    for index, gradients in found.items():
        logits = model.train()(x)
        # Closed form: the mean cross entropy's gradient with respect to z_bj is (p_bj - y_bj)/B.
        weight = (logits.softmax(1) - F.one_hot(targets, 10)).detach()[:, index] / 4
        model.zero_grad()
        (logits[:, index] * weight).sum().backward()
        expected = model.blocks[0].conv1.weight.grad
        assert list(gradients) == ["blocks.0.conv1.weight"]
        torch.testing.assert_close(gradients["blocks.0.conv1.weight"], expected, rtol=1e-3, atol=1e-7)


def test_tables_hold_the_gradients() -> None:
    model, x, targets = wide_resnet(10, 1).eval(), torch.randn(4, 3, 8, 8), torch.randint(0, 10, (4,))
    name = "blocks.1.conv2.weight"
    found = collected(model, x, targets, parameters=[name])
    table = classwise_gradients(model, x, targets, [name])
    np.testing.assert_allclose(table["mean_abs"], [float(found[i][name].abs().mean()) for i in range(10)], rtol=1e-4)
    np.testing.assert_allclose(table["norm"], [float(found[i][name].norm()) for i in range(10)], rtol=1e-4)
    assert table["share"].sum() == pytest.approx(1)
    assert table["predicted_share"].sum() == pytest.approx(1)
    assert set(table["layer"]) == {"blocks.1.conv2"}
    assert set(table["block"]) == {"blocks.1"}
    elements = classwise_elements(model, x, targets, name, classes=[3])
    np.testing.assert_allclose(elements["gradient"], found[3][name].flatten().numpy(), rtol=1e-3, atol=1e-8)
    assert len(classwise_gradients(model, x, targets, classes=[0])) == len(list(model.parameters()))
