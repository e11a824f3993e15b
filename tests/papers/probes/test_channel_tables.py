"""Tables of parameters, summands, channels and pairs of examples, against autograd and what is computed by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings, strategies as st
from measured import measured
from torch import Tensor, nn

from normless.models import wide_resnet
from normless.probes import observe
from normless_papers.probes.channels import ChannelGradients, ChannelPairs, channel_gradient_spread, contributions
from normless_papers.probes.stream import ExampleCovariance, covariance_of_examples
from normless_papers.probes.summand_tables import (
    ParameterGradients,
    SummandDistribution,
    gradient_alignment_table,
    summand_statistics,
)

INPUTS, TARGETS = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 1, 2, 3])


def gradient_of(model: nn.Module, name: str) -> Tensor:
    loss = F.cross_entropy(model(INPUTS), TARGETS)
    return torch.autograd.grad(loss, [model.get_parameter(name)])[0]


class Net(nn.Module):
    """A convolution after an activation, in two groups."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4) if "norm" in kind else nn.Identity()
        self.relu = nn.ReLU(inplace="in place" in kind)
        self.second = nn.Conv2d(4, 6, 3, groups=2)
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.first(x))
        h = torch.relu(h) if "functional" in self.kind else self.relu(h)
        h = F.avg_pool2d(h, 2) if "pool" in self.kind else h
        logits: Tensor = self.head(self.second(h).mean((2, 3)))
        return logits


@pytest.mark.parametrize("kind", ["in place", "functional", "norm", "pool"])
def test_parameters_have_their_gradient_and_the_mean_of_the_channel_they_read(kind: str) -> None:
    model = Net(kind)
    table = measured(ParameterGradients(["second"]), model, INPUTS, TARGETS)
    np.testing.assert_allclose(table["gradient"], gradient_of(model, "second.weight").flatten(), rtol=1e-3, atol=1e-7)
    assert table["in_channel"].tolist() == [c + 2 * (o // 3) for o in range(6) for c in range(2) for _ in range(9)]
    assert table["out_channel"].tolist() == [o for o in range(6) for _ in range(18)]
    assert table["offset"].tolist() == list(range(9)) * 12
    before = model.first(INPUTS)
    before = F.avg_pool2d(torch.relu(before), 2) if kind == "pool" else before
    means = before.mean((0, 2, 3)).detach().numpy()
    np.testing.assert_allclose(table["channel_mean"], means[table["in_channel"]], rtol=1e-4, atol=1e-6)
    row = gradient_alignment_table(table).iloc[0]
    assert row["sum_correlation"] == pytest.approx(np.corrcoef(table["abs_sum"], table["sum_abs"])[0, 1])
    assert row["mean_correlation"] == pytest.approx(np.corrcoef(table[["abs_sum", "channel_mean"]].rank().T)[0, 1])


def test_summands_of_chosen_parameters_are_a_row_each() -> None:
    model = Net("module")
    table = measured(SummandDistribution("second", ["largest", (5, 1, 2, 0)]), model, INPUTS, TARGETS)
    assert len(table) == 2 * 4 * 36
    assert table["position"].max() == 35
    gradient = gradient_of(model, "second.weight")
    of_one = table[table["chosen"] == "given"]
    assert of_one["parameter"].unique().tolist() == ["5,1,2,0"]
    assert of_one["summand"].sum() == pytest.approx(float(gradient[5, 1, 2, 0]), rel=1e-3)
    largest = table[table["chosen"] == "largest"]["summand"].sum()
    assert abs(largest) == pytest.approx(float(gradient.abs().max()), rel=1e-3)
    statistics = summand_statistics(table).iloc[1]
    values = of_one["summand"].to_numpy()
    assert statistics["input_independence"] == pytest.approx(abs(values.sum()) / np.abs(values).sum(), rel=1e-5)
    assert 0.5 <= statistics["one_sign_share"] <= 1


def test_channel_pairs_are_sums_over_the_kernel() -> None:
    model, watcher = wide_resnet(10, 1).train(), ChannelPairs()
    observe(model, [watcher], INPUTS, TARGETS)
    exact = gradient_of(model, "blocks.1.conv1.weight").abs().sum((2, 3))
    np.testing.assert_allclose(watcher.matrix("blocks.1.conv1.weight"), exact, rtol=1e-3, atol=1e-6)
    weights = {name for name, parameter in model.named_parameters() if parameter.dim() > 1}
    assert set(watcher.structure()["weight"]) == weights


def test_channel_gradients_are_those_of_a_bias() -> None:
    """Of the norm's β if a norm follows, else of the layer's own bias."""
    model, biases = Net("norm"), {"first": "norm.bias", "second": "second.bias", "head": "head.bias"}
    table = measured(ChannelGradients(), model, INPUTS, TARGETS)
    for layer, name in biases.items():
        found = table[table["layer"] == layer]
        assert {*found["measured_at"]} == {name.partition(".")[0]}
        np.testing.assert_allclose(found["gradient"], gradient_of(model, name), rtol=1e-3, atol=1e-6)
    spread = channel_gradient_spread(table).set_index("layer").loc["head"]
    sizes = gradient_of(model, "head.bias").abs().double().numpy()
    assert spread["variation"] == pytest.approx(sizes.std() / sizes.mean(), rel=1e-3)
    assert spread["decades"] == pytest.approx(np.log10(sizes).std(), rel=1e-3)


STRIDES = st.sampled_from([1, 2])


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 3), STRIDES, STRIDES, st.sampled_from([1, 2, 4]), st.integers(0, 999))
def test_contributions_are_those_of_each_channel_by_itself(
    kernel: int, stride: int, dilation: int, groups: int, seed: int
) -> None:
    torch.manual_seed(seed)
    module = nn.Conv2d(4, 8, kernel, stride, 1, dilation, groups)
    x = torch.randn(2, 4, 6, 6)
    readers = torch.arange(8).reshape(groups, -1)
    for channel, found in enumerate(contributions(module, x).tolist()):
        alone = torch.zeros_like(x)
        alone[:, channel] = x[:, channel]
        part = module(alone) - module.get_parameter("bias")[:, None, None]
        reading = readers[channel // (4 // groups)]
        assert found == pytest.approx(float(part[:, reading].abs().mean().detach()), rel=1e-4)


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 6), st.lists(st.integers(1, 4), min_size=1, max_size=3))
def test_pairs_are_those_of_a_loop(batch: int, shape: list[int]) -> None:
    x = torch.randn(batch, *shape, dtype=torch.float64) + 0.5
    flat = x.flatten(1)
    whole = np.cov(flat.numpy(), bias=True).reshape(batch, batch) if flat.shape[1] > 1 else np.zeros((batch, batch))
    expected = np.diag(whole).mean(), whole[~np.eye(batch, dtype=bool)].mean()
    assert covariance_of_examples(x) == pytest.approx(expected, abs=1e-12)


def test_both_sides_of_a_sum() -> None:
    model, x = wide_resnet(10, 1), torch.randn(4, 3, 8, 8)
    table = measured(ExampleCovariance(), model, x)
    sides: list[tuple[Tensor, Tensor]] = []
    model.blocks[1].sum.register_forward_hook(lambda _, inputs, __: sides.append(inputs))
    with torch.no_grad():
        model.train()(x)
    skip, branch = (side.flatten(1).double().numpy() for side in sides[0])
    expected = np.mean([np.cov(left, other, bias=True)[0, 1] for left, other in zip(skip, branch, strict=True)])
    assert table["skip_branch_covariance"][1] == pytest.approx(expected, rel=1e-5)
