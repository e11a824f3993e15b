"""`convert` and `plan`: a new module, the original untouched, refusals that say why."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch

import normless as nl
from normless.conversion import scheme_of
from normless.edits import BranchMultiplier, Edit, Surgery
from normless.models import resnet_cifar, wide_resnet
from normless.schemes import SCHEMES, Scheme


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


QUICK = ("batch_norm_sqrt2", "fixup", "lsuv", "nf_resnet", "zeroinit_v1")


@pytest.mark.parametrize(
    "scheme",
    [
        scheme if scheme in QUICK else pytest.param(scheme, marks=pytest.mark.slow)
        for scheme in sorted(set(SCHEMES) - OF_TRANSFORMERS - {"tailored_activations"})
    ],
)
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


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("fixupp", r"'fixupp'.*Did you mean fixup\? .*as_written, batch_norm, "),
        ("skipinit(beta=1)", "skipinit takes alpha, keep_scale; it does not take beta"),
        ("as_written(x=1)", "as_written takes no arguments"),
        ("none(keep_scale=trained)", "keep_scale is True or False or all, not 'trained'"),
        ("fixup(", "Expected NAME or NAME"),
        ("skipinit(1)", "every argument needs its name"),
    ],
)
def test_texts_that_name_no_scheme_are_refused_with_the_known(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        nl.scheme(text)


def test_what_is_no_scheme_is_refused_and_text_is_never_evaluated() -> None:
    assert nl.scheme("skipinit(alpha=__import__('os').getcwd())").edits[2] == BranchMultiplier(
        "__import__('os').getcwd()"
    )
    for name in nl.SCHEMES:
        edits = nl.scheme(name).edits
        text = Scheme("batch_norm", ()).extended(*edits).text
        assert nl.scheme(text) == Scheme(text, edits)
    with pytest.raises(TypeError, match="such as 'fixup', got an object of type WideResNet"):
        nl.convert("fixup", wide_resnet(10, 1))
    with pytest.raises(nl.UnsupportedEditError, match=r"starts at a number or at 1/sqrt\(L\)"):
        nl.convert(wide_resnet(10, 1), "skipinit(alpha=sqrt(L))")


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


@pytest.mark.parametrize("scheme", ["fixup", "layer_scale"])
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


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.int64])
@pytest.mark.parametrize("scheme", ["none", "skipinit", "lsuv", "group_norm(groups=1)"])
def test_layers_of_whole_numbers_are_refused(dtype: torch.dtype, scheme: str) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))
    net[0].weight = torch.nn.Parameter(torch.ones(4, 4, dtype=dtype), requires_grad=False)
    with pytest.raises(nl.UnsupportedEditError, match=f"weight of 0, a Linear, has whole numbers .{dtype}"):
        nl.convert(net, scheme, torch.ones(2, 4))
