"""`convert` and `plan`: a new module, the original untouched, texts of schemes; refusals are in tests/errors."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import normless as nl
from normless.conversion import scheme_of
from normless.edits import BranchMultiplier, Edit, Surgery
from normless.models import wide_resnet
from normless.schemes import Scheme


def test_plan_lists_what_convert_does_and_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It needs neither a map that is known nor a second set of weights."""
    model = wide_resnet(10, 1)
    found, text = nl.residual_map(model), "skipinit(alpha=1/sqrt(L), keep_scale=False)"
    expected, devices, run = nl.plan(model, text), set[str](), Surgery.run

    def looked_for(*_: object) -> None:
        raise AssertionError("the map was looked for")

    def watched(surgery: Surgery, edit: Edit) -> None:
        run(surgery, edit)
        devices.update(value.device.type for value in surgery.model.state_dict().values())

    monkeypatch.setattr("normless.edits._original.residual_map", looked_for)
    monkeypatch.setattr(Surgery, "run", watched)
    assert nl.plan(model, text, residual_map=found) == expected
    assert devices == {"meta"}
    assert scheme_of(model) is None
    norms = [f"blocks.{block}.norm{norm}" for block in range(3) for norm in (1, 2)]
    assert [change.path for change in expected] == [*norms, "norm", *(f"blocks.{block}" for block in range(3))]
    said = "BranchMultiplier(init='1/sqrt(L)'): blocks.2: multiplier at the end of the branch, initially 0.5774"
    assert str(expected[-1]) == said
    net: Any = nl.convert(model, "fixup", residual_map=found)
    assert torch.count_nonzero(net.classifier.weight) == 0


def names(text: str) -> list[str]:
    return [type(edit).__name__ for edit in nl.scheme(text).edits]


def test_ablations_leave_edits_out_and_text_is_never_evaluated() -> None:
    weights = ["RemoveNorms", "ResetBranchFactors", "RescaleBranches"]
    scalars = ["ZeroBranchEnds", "ZeroClassifier", "BranchMultiplier", "ScalarBiases"]
    assert {*names("fixup")} == {*weights, *scalars}
    assert names("fixup(zero=False, multiplier=False, biases=False)") == weights
    assert names("zeroinit(multiplier=False, dropout=0, keep_scale=False)") == ["RemoveNorms", "ChannelBiases"]
    call = "__import__('os').getcwd()"
    assert nl.scheme(f"skipinit(alpha={call})").edits[2] == BranchMultiplier(call)
    for name in nl.SCHEMES:
        edits = nl.scheme(name).edits
        text = Scheme("batch_norm", ()).extended(*edits).text
        assert nl.scheme(text) == Scheme(text, edits)


class Failing(Edit):
    """Fails for a reason that has nothing to do with weights without values."""

    def apply(self, surgery: Surgery) -> None:
        raise RuntimeError("no reason")


class Reading(Edit):
    """Reads a weight, as an edit of another package may."""

    def apply(self, surgery: Surgery) -> None:
        surgery.record("stem", f"norm {float(surgery.parameter('stem.weight').norm()):.3f}")


def test_plan_reads_weights_where_an_edit_does_and_hides_no_other_error() -> None:
    model = wide_resnet(10, 1)
    (change,) = nl.plan(model, Scheme("reading", (Reading(),)))
    assert change.what == f"norm {float(model.stem.weight.detach().norm()):.3f}"
    with pytest.raises(RuntimeError, match="no reason") as caught:
        nl.plan(model, Scheme("failing", (Failing(),)))
    assert caught.value.__context__ is None


@pytest.mark.parametrize("scheme", ["fixup", "layer_scale"])
def test_a_conversion_in_place_is_that_of_a_copy(scheme: str) -> None:
    network = wide_resnet(16, 1)
    torch.manual_seed(1)
    expected = nl.convert(network, scheme)
    torch.manual_seed(1)
    assert nl.convert(network, scheme, in_place=True) is network
    assert repr(network) == repr(expected)
    for (name, value), (other, same) in zip(network.state_dict().items(), expected.state_dict().items(), strict=True):
        assert name == other
        assert torch.equal(value, same)
