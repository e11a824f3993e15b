"""Weights and their angle to the gradient, while a network trains."""

from __future__ import annotations

import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normless import convert, probe
from normless.models import dense, resnet_cifar
from normless_papers.probes.training_signals import COLUMNS, WeightDynamics


def measured(network: nn.Module, inputs: Tensor) -> pd.DataFrame:
    """The weights of a network on a batch whose examples have the classes 0, 1, 2, …."""
    return probe(network, (inputs, torch.arange(len(inputs))), [WeightDynamics()])["WeightDynamics"]


def test_a_normalized_weight_is_orthogonal_to_its_gradient() -> None:
    """After a batch norm nothing depends on the weight's length: ⟨∂l/∂W, W⟩ = 0."""
    network = resnet_cifar(8)
    table = measured(network, torch.randn(8, 3, 8, 8))
    branch = table[table["place"] == "branch"]
    assert len(branch) == 6
    # ε in the norm's denominator is what is left.
    assert (branch["cosine"].abs() < 1e-3).all()
    assert (branch["gamma_last"] == 1).all()
    assert table["multiplier"].isna().all()


def test_measured_numbers_are_those_of_the_weights() -> None:
    network, inputs = convert(dense(2, 5, in_features=3), "none"), torch.randn(4, 3)
    frozen = network.get_submodule("blocks.0.branch.linear1").requires_grad_(False)
    table = measured(network, inputs)
    assert list(table.columns) == list(COLUMNS)
    F.cross_entropy(network(inputs), torch.arange(4)).backward()
    weights = {name: parameter for name, parameter in network.named_parameters() if parameter.dim() > 1}
    assert {*table["parameter"]} == {*weights}
    for name, row in table.set_index("parameter").iterrows():
        weight = weights[str(name)]
        assert row["weight_norm"] == pytest.approx(float(weight.detach().norm()))
        if weight.grad is None:
            assert weight is frozen.weight
            assert row[["gradient_norm", "inner_product", "cosine"]].isna().all()
        else:
            assert row["gradient_norm"] == pytest.approx(float(weight.grad.norm()))
            cosine = F.cosine_similarity(weight.detach().flatten(), weight.grad.flatten(), dim=0)
            assert row["cosine"] == pytest.approx(float(cosine), abs=1e-6)
