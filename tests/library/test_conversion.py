"""Conversions and plans, and the ways to pass inputs to every function."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import normless as nl
from normless.cli.inspection import inspect_network
from normless.conversion import scheme_of
from normless.edits import BranchMultiplier, Edit, Surgery
from normless.errors import InputsError
from normless.models import resnet_cifar, wide_resnet
from normless.schemes import SCHEMES, Scheme


def test_a_foreign_network_needs_example_inputs() -> None:
    with pytest.raises(nl.UnresolvedStructureError, match="pass example inputs"):
        nl.convert(nn.Linear(3, 3), "none")


def test_plan_lists_what_convert_does_and_does_nothing() -> None:
    model = wide_resnet(10, 1)
    changes = nl.plan(model, "skipinit(alpha=1/sqrt(L), keep_scale=False)")
    assert scheme_of(model) is None
    assert [change.path for change in changes] == [
        *(f"blocks.{block}.norm{norm}" for block in range(3) for norm in (1, 2)),
        "norm",
        *(f"blocks.{block}" for block in range(3)),
    ]
    assert str(changes[-1]) == (
        "BranchMultiplier(init='1/sqrt(L)'): blocks.2: multiplier at the end of the branch, initially 0.5774"
    )


def test_a_known_map_is_not_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model = wide_resnet(10, 1)
    found = nl.residual_map(model)
    expected = nl.plan(model, "fixup")

    def looked_for(*_: object) -> None:
        raise AssertionError("the map was looked for")

    monkeypatch.setattr("normless.conversion.find_residual_map", looked_for)
    assert nl.plan(model, "fixup", residual_map=found) == expected
    net = nl.convert(model, "fixup", residual_map=found)
    assert torch.count_nonzero(net.classifier.weight) == 0


# Those for transformers, and for activations before the sums, refuse this ResNet.
OF_TRANSFORMERS = {"layer_norm", "deepnorm", "t_fixup", "admin", "layer_norm_scaling", "peri_norm", "sandwich_norm"}
OF_TRANSFORMERS |= {"qk_norm", "soft_capping"}


@pytest.mark.parametrize("scheme", sorted(set(SCHEMES) - OF_TRANSFORMERS - {"tailored_activations"}))
def test_plan_leaves_weights_mode_and_random_state_and_says_what_convert_says(scheme: str) -> None:
    model = resnet_cifar(8)
    model.stem.weight.requires_grad_(False)
    images = torch.randn(4, 3, 8, 8)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    planned = nl.plan(model, scheme, images)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(module.training for module in model.modules())
    if scheme != "lsuv":
        # It alone draws weights to plan with: what it changes depends on them.
        assert torch.equal(torch.get_rng_state(), state)
    torch.set_rng_state(state)
    surgery = Surgery(deepcopy(model), nl.residual_map(model), (images,))
    for edit in nl.scheme(scheme).edits:
        surgery.run(edit)
    assert list(planned) == surgery.changes


@pytest.mark.parametrize("name", nl.SCHEMES)
def test_edits_behind_a_scheme_are_read_from_its_text(name: str) -> None:
    edits = nl.scheme(name).edits
    text = Scheme("batch_norm", ()).extended(*edits).text
    assert nl.scheme(text) == Scheme(text, edits)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("none + Zero()", "There is no edit 'Zero'.* The edits are AddQKNorm, .* one of your own is FILE.py:NAME"),
        ("none + HeadDropout(p=0.2)", "The edit HeadDropout takes probability; it does not take p"),
        ("none + HeadDropout(probability='much')", "In the edit HeadDropout, probability is a number, not 'much'"),
        ("none + ReplaceNorms()", r"The edit ReplaceNorms needs family, as in ReplaceNorms\(family=…\)"),
        ("ZeroClassifier() + none", "There is no scheme 'ZeroClassifier'"),
        ("none + fixup", "There is no edit 'fixup'"),
    ],
)
def test_edits_that_cannot_follow_a_scheme_are_told(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        nl.scheme(text)


def test_ablations_leave_edits_out() -> None:
    full = {type(edit).__name__ for edit in nl.scheme("fixup").edits}
    assert full == {
        "RemoveNorms",
        "ResetBranchFactors",
        "RescaleBranches",
        "ZeroBranchEnds",
        "ZeroClassifier",
        "BranchMultiplier",
        "ScalarBiases",
    }
    names = [type(edit).__name__ for edit in nl.scheme("fixup(zero=False, multiplier=False, biases=False)").edits]
    assert names == ["RemoveNorms", "ResetBranchFactors", "RescaleBranches"]
    text = "zeroinit(multiplier=False, dropout=0, keep_scale=False)"
    assert [type(edit).__name__ for edit in nl.scheme(text).edits] == ["RemoveNorms", "ChannelBiases"]


def test_unknown_schemes_list_the_known() -> None:
    with pytest.raises(
        ValueError,
        match=r"There is no scheme 'fixupp'. Did you mean fixup\? The schemes are as_written, batch_norm, ",
    ):
        nl.convert(wide_resnet(10, 1), "fixupp")
    with pytest.raises(TypeError, match="such as 'fixup', got an object of type WideResNet"):
        nl.convert("fixup", wide_resnet(10, 1))
    with pytest.raises(ValueError, match="The scheme skipinit takes alpha, keep_scale; it does not take beta"):
        nl.scheme("skipinit(beta=1)")
    with pytest.raises(ValueError, match="The scheme as_written takes no arguments"):
        nl.scheme("as_written(x=1)")
    with pytest.raises(ValueError, match="keep_scale is True or False or all, not 'trained'"):
        nl.scheme("none(keep_scale=trained)")
    with pytest.raises(ValueError, match="Expected NAME or NAME"):
        nl.scheme("fixup(")
    with pytest.raises(ValueError, match="every argument needs its name"):
        nl.scheme("skipinit(1)")
    with pytest.raises(nl.UnsupportedEditError, match=r"starts at a number or at 1/sqrt\(L\)"):
        nl.convert(wide_resnet(10, 1), "skipinit(alpha=sqrt(L))")


def test_text_is_never_evaluated() -> None:
    edits = nl.scheme("skipinit(alpha=__import__('os').getcwd())").edits
    assert edits[2] == BranchMultiplier("__import__('os').getcwd()")


class Failing(Edit):
    """Fails for a reason that has nothing to do with weights without values."""

    def apply(self, surgery: Surgery) -> None:
        raise RuntimeError("no reason")


class Reading(Edit):
    """Reads a weight, as an edit of another package may."""

    def apply(self, surgery: Surgery) -> None:
        surgery.record("stem", f"norm {float(surgery.get('stem').weight.norm()):.3f}")


def test_plan_reads_weights_where_an_edit_does_and_hides_no_other_error() -> None:
    model = wide_resnet(10, 1)
    (change,) = nl.plan(model, Scheme("reading", (Reading(),)))
    assert change.what == f"norm {float(model.stem.weight.detach().norm()):.3f}"
    with pytest.raises(RuntimeError, match="no reason") as caught:
        nl.plan(model, Scheme("failing", (Failing(),)))
    assert caught.value.__context__ is None


class Filtered(nn.Module):
    """Keeps a buffer that is computed from a parameter, as braindecode's EEGMiner does."""

    def __init__(self) -> None:
        super().__init__()
        self.widths = nn.Parameter(torch.rand(4))
        self.register_buffer("filters", self.widths * 2)
        self.norm, self.linear = nn.BatchNorm1d(4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        self.filters = self.widths * 2
        x = x * self.filters
        y: Tensor = x + self.linear(self.norm(x))
        return y


def test_a_network_with_computed_buffers_is_copied() -> None:
    model, x = Filtered(), torch.randn(3, 4)
    net = nl.convert(model, "none(keep_scale=False)", x)
    torch.testing.assert_close(net(x), x * model.widths * 2 + model.linear(x * model.widths * 2))


@pytest.mark.parametrize("scheme", ["skipinit", "fixup", "batch_norm", "layer_scale"])
def test_a_conversion_in_place_is_that_of_a_copy(scheme: str) -> None:
    torch.manual_seed(0)
    network = wide_resnet(16, 1)
    torch.manual_seed(1)
    expected = nl.convert(network, scheme)
    torch.manual_seed(1)
    assert nl.convert(network, scheme, in_place=True) is network
    assert repr(network) == repr(expected)
    for (name, value), (other, same) in zip(network.state_dict().items(), expected.state_dict().items(), strict=True):
        assert name == other
        assert torch.equal(value, same)


def test_a_copy_shares_no_table_of_hooks_and_no_gradient() -> None:
    network = wide_resnet(10, 1, in_channels=1)
    network(torch.randn(2, 1, 8, 8)).sum().backward()
    copy = nl.convert(network, "batch_norm")
    copy.blocks[0].conv1.register_forward_hook(lambda *_: None)
    copy.blocks[0].conv1.extra = 1
    assert not network.blocks[0].conv1._forward_hooks
    assert not hasattr(network.blocks[0].conv1, "extra")
    assert {id(table) for table in vars(copy.blocks[0].conv1).values()}.isdisjoint(
        id(table) for table in vars(network.blocks[0].conv1).values() if isinstance(table, dict)
    )
    assert all(one.grad is not None for one in network.parameters())
    assert all(one.grad is None for one in copy.parameters())


def test_plan_needs_no_second_set_of_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    model = wide_resnet(10, 1)
    devices: set[str] = set()
    run = Surgery.run

    def watched(surgery: Surgery, edit: Edit) -> None:
        run(surgery, edit)
        devices.update(value.device.type for value in surgery.model.state_dict().values())

    monkeypatch.setattr(Surgery, "run", watched)
    nl.plan(model, "fixup")
    assert devices == {"meta"}


class Gained(nn.Module):
    """A residual network of two arguments that does not state its structure."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.conv, self.head = nn.Conv2d(4, 4, 3, padding=1), nn.Linear(4, 2)

    def forward(self, x: Tensor, gain: Tensor) -> Tensor:
        h = self.stem(x)
        return self.head((h + gain * self.conv(torch.relu(self.norm(h)))).mean((2, 3)))


TAKERS: dict[str, Callable[..., Any]] = {
    "residual_map": nl.residual_map,
    "convert": lambda model, *x, **named: [
        name for name, _ in nl.convert(model, "skipinit", *x, **named).named_parameters()
    ],
    "plan": lambda model, *x, **named: nl.plan(model, "skipinit", *x, **named),
    "mixes_examples": lambda model, *x, **named: nl.mixes_examples(model, *x, **named).modules,
    "fold": lambda model, *x, **named: str(nl.fold(model.eval(), *x, **named)[1]),
    "inspect_network": partial(inspect_network, schemes=["skipinit", "lsuv"]),
}


@pytest.mark.parametrize("name", TAKERS)
def test_arguments_come_one_by_one_or_as_one_value(name: str) -> None:
    taker = TAKERS[name]
    torch.manual_seed(0)
    model, x, gain = Gained(), torch.randn(4, 3, 5, 5), torch.ones(4, 1, 1)

    def found(*inputs: Any, **named: Any) -> Any:
        torch.manual_seed(0)
        return taker(model, *inputs, **named)

    expected = found(x, gain)
    assert expected
    assert found(example_inputs=(x, gain)) == expected
    assert found(example_inputs={"x": x, "gain": gain}) == expected
    assert found(x, gain=gain) == expected
    with pytest.raises(ValueError, match="separate arguments or as example_inputs=…, got both"):
        found(x, gain, example_inputs=(x, gain))


def test_parameter_groups_take_them_by_position_too() -> None:
    model, x, gain = Gained(), torch.randn(4, 3, 5, 5), torch.ones(4, 1, 1)
    names = [
        [group["name"] for group in nl.param_groups(model, *inputs, lr=0.1, weight_decay=1e-4, **named)]
        for inputs, named in (((x, gain), {}), ((), {"example_inputs": (x, gain)}))
    ]
    assert names[0] == names[1]
    assert "weights" in names[0]


IMAGES, LABELS = torch.randn(4, 3, 5, 5), torch.tensor([0, 1, 1, 0])


@pytest.mark.parametrize(
    ("batch", "said", "cause"),
    [
        (
            (torch.randn(4, 2, 5, 5), LABELS),
            r"Plain does not take arguments \[4, 2, 5, 5\], RuntimeError: .*channels",
            RuntimeError,
        ),
        (("text", LABELS), "Plain does not take arguments str, ", Exception),
        (
            (IMAGES, torch.tensor([0, 1, 7, 0])),
            r"cross_entropy does not take arguments \[4, 2\], \[4\], IndexError",
            IndexError,
        ),
        ((IMAGES, LABELS[:3]), r"cross_entropy does not take arguments \[4, 2\], \[3\], ValueError", ValueError),
        ((IMAGES, None), "targets are needed", None),
    ],
)
def test_what_a_network_or_a_loss_does_not_take_is_a_sentence(
    batch: Any, said: str, cause: type[Exception] | None
) -> None:
    class Plain(Gained):
        def forward(self, x: Tensor, gain: Tensor | None = None) -> Tensor:
            return super().forward(x, torch.ones(4, 1, 1))

    model = Plain()
    mapped = nl.residual_map(model, IMAGES)
    with pytest.raises(ValueError, match=said) as caught:
        nl.probe(model, batch, residual_map=mapped)
    assert cause is None or isinstance(caught.value.__cause__, cause)
    assert isinstance(caught.value, nl.errors.InputsError) == (cause is not None)


@pytest.mark.parametrize(
    "taker",
    [
        *(nl.residual_map, nl.freeze, nl.fold, nl.fuse_for_inference, nl.mixes_examples, nl.watch),
        lambda model, *_: nl.diagnose(model, (IMAGES, LABELS)),
    ],
)
def test_what_is_no_network_is_refused(taker: Callable[..., Any]) -> None:
    inputs = () if taker in (nl.watch, nl.freeze) else (IMAGES,)
    for given in (Gained, None, torch.relu):
        with pytest.raises(TypeError, match=r"Expected a network, a torch\.nn\.Module, got"):
            taker(given, *inputs)


def test_labels_without_an_axis_and_networks_without_a_trainable_parameter_are_diagnosed() -> None:
    diagnosis = nl.diagnose(nn.Sequential(nn.Flatten(), nn.Linear(75, 2)), (IMAGES, torch.tensor(1)))
    assert [one.kind for one in diagnosis.findings] == ["label_shape"]
    frozen = nn.Sequential(nn.Flatten(), nn.Linear(75, 2)).requires_grad_(False)
    assert not nl.diagnose(frozen, (IMAGES, LABELS)).healthy


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ((4, 3, 5, 5), r"got numbers: 4, 3, 5, 5\. Pass .* torch\.randn\(shape\) if the numbers are a shape\."),
        (IMAGES.tolist(), r"got numbers: .*, …\. Pass torch\.tensor\(numbers\)"),
        (IMAGES.numpy(), r"got a NumPy array of shape \(4, 3, 5, 5\)\. Pass torch\.from_numpy\(array\)\."),
    ],
)
@pytest.mark.parametrize("name", TAKERS)
def test_a_shape_a_list_or_an_array_is_refused(name: str, inputs: Any, message: str) -> None:
    with pytest.raises(InputsError, match=message):
        TAKERS[name](Gained(), example_inputs=inputs)
