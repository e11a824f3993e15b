"""The edit that gives weights the scale of the norms: closed forms, what it leaves, what it records."""

from __future__ import annotations

from math import pi, sqrt

import pytest
import torch
from edit_helpers import altered, edited, images
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

import normless as nl
from normless.edits import KeepScale, RemoveNorms
from normless.models import dense, resnet_cifar, transformer, wide_resnet

SCHEMES = ["none", "skipinit", "remove_branches"]


def chain(gamma: float = 1.0) -> nn.Sequential:
    """Linear, norm, ReLU, linear, norm, ReLU, classifier; γ of the second norm."""
    layers = [nn.Linear(9, 12, bias=False), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 15), nn.BatchNorm1d(15)]
    nn.init.constant_(layers[-1].weight, gamma)
    return nn.Sequential(*layers, nn.ReLU(), nn.Linear(15, 4))


def second(rows: Tensor, bias: Tensor, variances: Tensor) -> float:
    """E[(w·relu(z) + b)²] over independent z ~ N(0, variances), averaged over rows w and their biases b.

    relu(z) has mean √(v / 2π) and second moment v / 2.
    """
    total = 0.0
    for row, shift in zip(rows.tolist(), bias.tolist(), strict=True):
        mean = shift + sum(w * sqrt(v / (2 * pi)) for w, v in zip(row, variances.tolist(), strict=True))
        spread = sum(w**2 * v * (1 / 2 - 1 / (2 * pi)) for w, v in zip(row, variances.tolist(), strict=True))
        total += mean**2 + spread
    return total / len(rows)


def factors(before: nn.Module, after: nn.Module) -> dict[str, float]:
    """By what each parameter was multiplied; fails where it was not one number."""
    found = {}
    own = dict(before.named_parameters())
    for name, value in after.named_parameters():
        if name in own and own[name].any():
            found[name] = float((value.norm() / own[name].norm()).detach())
            torch.testing.assert_close(value, own[name] * found[name])
    return found


def test_a_layer_that_a_norm_reads_gives_what_the_norm_gave() -> None:
    model = chain()
    found = factors(model, nl.convert(model, "none", torch.randn(5, 9)))
    assert found["0.weight"] == pytest.approx(sqrt(12 / float(model[0].weight.detach().square().sum())), rel=1e-5)
    variances = model[0].weight.detach().square().sum(1) * found["0.weight"] ** 2
    assert found["3.weight"] == pytest.approx(1 / sqrt(second(model[3].weight, model[3].bias, variances)), rel=1e-4)
    assert found["3.bias"] == pytest.approx(found["3.weight"], rel=1e-5)
    assert found["6.weight"] == found["6.bias"] == 1


def test_a_gamma_and_beta_are_what_the_layer_comes_to() -> None:
    model, plain, shifted = chain(0.5), chain(0.0), chain(0.5)
    plain.load_state_dict(model.state_dict() | {"4.weight": torch.zeros(15)})
    x = torch.randn(5, 9)
    expected = factors(model, nl.convert(model, "none", x))["3.weight"]
    # A γ of 0, which a multiplier stands for, counts as 1.
    assert factors(plain, nl.convert(plain, "none", x))["3.weight"] == pytest.approx(expected / 0.5, rel=1e-5)
    shifted.load_state_dict(model.state_dict() | {"4.bias": torch.full((15,), 2.0)})
    found = factors(shifted, nl.convert(shifted, "none(keep_scale=all)", x))["3.weight"]
    assert found == pytest.approx(expected * sqrt(0.25 + 4) / 0.5, rel=1e-5)


@pytest.mark.parametrize(
    ("scheme", "growth"),
    [
        ("skipinit", 1.0),
        pytest.param("none", 2.0, marks=pytest.mark.slow),
        ("skipinit(alpha=1/sqrt(L))", 1 + 1 / 9),
    ],
)
def test_the_stream_of_a_pre_activation_network(scheme: str, growth: float) -> None:
    """De & Smith, section 3: twice as much behind every block without multipliers, (1 + 1/L)^L → e with 1/√L."""
    grown, first = [], []
    for seed in range(3):
        torch.manual_seed(seed)
        table = nl.probe(nl.convert(wide_resnet(22, 4), scheme), torch.randn(8, 3, 32, 32), ["signal"]).signal
        stream = table["sum_second_moment"].to_numpy()
        # Projections, with which every third block starts, begin a stream anew.
        grown += [stream[block] / stream[block - 1] for block in (1, 2, 4, 5, 7, 8)]
        first.append(table["skip_second_moment"][0])
    assert sum(grown) / len(grown) == pytest.approx(growth, rel=0.1 if growth > 1 else 1e-6)
    assert sum(first) / 3 == pytest.approx(1, rel=0.1)


def test_the_stream_of_a_v1_network() -> None:
    """Behind the stem's ReLU 1/2, which branches of zero keep and option A halves at both of its places."""
    torch.manual_seed(0)
    table = nl.probe(nl.convert(resnet_cifar(20), "skipinit"), torch.randn(32, 3, 32, 32), ["signal"]).signal
    measured = table["sum_second_moment"].to_numpy()
    expected = [0.5] * 3 + [0.25] * 3 + [0.125] * 3
    assert measured == pytest.approx(expected, rel=0.25)
    branches = nl.convert(resnet_cifar(20), "skipinit(alpha=1)")
    first = nl.probe(branches, torch.randn(32, 3, 32, 32), ["signal"]).signal["branch_second_moment"].to_numpy()[0]
    assert first == pytest.approx(1, rel=0.35)


def test_what_no_norm_reads_further_on_stays() -> None:
    """In `dense` the classifier reads the stream itself, so that stem and branch ends have a scale of their own."""
    model = dense(2, 20, in_features=6, branch_layers=2)
    found = factors(model, nl.convert(model, "none"))
    kept = {"stem.linear1.weight", "classifier.weight", "classifier.bias"}
    kept |= {f"blocks.{block}.branch.linear2.weight" for block in (0, 1)}
    assert {name for name, factor in found.items() if factor == 1} == kept


@pytest.mark.parametrize("scheme", SCHEMES)
def test_weights_are_scaled_by_one_number_and_left_where_that_is_asked(scheme: str) -> None:
    model = wide_resnet(10, 1)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    kept, net = nl.convert(model, f"{scheme}(keep_scale=False)"), nl.convert(model, scheme)
    assert not altered(model, kept)
    scaled = {name for name, factor in factors(model, net).items() if factor != 1}
    assert "stem.weight" in scaled
    assert not any(name.startswith("classifier") for name in scaled)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def trained(model: nn.Module) -> nn.Module:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    nn.functional.cross_entropy(model(images()), torch.arange(4)).backward()
    optimizer.step()
    return model


@pytest.mark.parametrize("scheme", SCHEMES)
def test_trained_weights_are_left_bit_for_bit(scheme: str) -> None:
    model = trained(wide_resnet(10, 1))
    assert not set(altered(model, nl.convert(model, scheme)))
    (said,) = [change for change in nl.plan(model, scheme) if "KeepScale" in change.edit]
    assert said.path == ""
    assert all(part in said.what for part in ("blocks.0.norm1", "keep_scale='all'", "nl.fold"))


def test_a_forward_pass_does_not_make_a_network_trained() -> None:
    model = wide_resnet(10, 1)
    fresh = nl.convert(model, "none").state_dict()
    model(images())
    after = nl.convert(model, "none").state_dict()
    assert all(torch.equal(value, fresh[name]) for name, value in after.items())


def test_statistics_tell_of_a_norm_that_learns_nothing() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6, affine=False), nn.ReLU(), nn.Linear(6, 2))
    x = torch.randn(8, 6)
    assert "0.weight" in altered(model, nl.convert(model, "none", x))
    model(3 + x)
    assert not altered(model, nl.convert(model, "none", x))


def test_plan_says_what_convert_does_and_reads_the_values() -> None:
    model = wide_resnet(10, 1)
    net = nl.convert(model, "skipinit")
    said = [change for change in nl.plan(model, "skipinit") if "KeepScale" in change.edit]
    assert len(said) == 9
    for change in said:
        ratio = net.get_submodule(change.path).weight / model.get_submodule(change.path).weight
        assert change.what.startswith(f"weight × {float(ratio.detach().mean()):.4g}: second moment 1 ")
    assert str(said[0]).startswith("KeepScale(weights='fresh'): stem: weight × ")


def test_a_network_without_values_is_converted_and_planned() -> None:
    with torch.device("meta"):
        model = wide_resnet(10, 1)
    assert next(nl.convert(model, "skipinit").parameters()).is_meta
    assert nl.plan(model, "skipinit")[0].what == "left: its weights have no values on the device meta"


def test_it_comes_before_the_norms_are_removed() -> None:
    with pytest.raises(nl.UnsupportedEditError, match="they are removed already; it comes before that"):
        edited(wide_resnet(10, 1), RemoveNorms(), KeepScale())
    with pytest.raises(nl.UnsupportedEditError, match="the weights are fresh or all, not 'some'"):
        edited(wide_resnet(10, 1), KeepScale("some"))  # type: ignore[arg-type]


def test_a_weight_that_a_layer_computes_by_itself_is_left() -> None:
    model = nn.Sequential(weight_norm(nn.Linear(6, 6)), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))
    assert not altered(model, nl.convert(model, "none", torch.randn(8, 6)))


def test_an_encoder_and_decoder_of_stated_structure() -> None:
    """Post-norm: only the stream's start has a norm's scale, and its embeddings are no layers of the structure."""
    model = transformer(vocabulary=11, layers=1, width=8, heads=2, feed_forward=8, dropout=0.0)
    assert not altered(model, nl.convert(model, "none"))
