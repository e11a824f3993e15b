"""What a diagnosis prints: ten lines, whatever was found; consequences after causes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Adam, Optimizer

import normless as nl
from normless.doctor import Check, Diagnosis, Finding
from normless.doctor._findings import EXPLAINS, Cure, in_order
from normless.errors import InputsError

words = st.lists(st.text("abcdefgh.{}/%", min_size=1, max_size=40), min_size=1, max_size=60).map(" ".join)
findings = st.builds(
    Finding,
    kind=st.sampled_from(["not_fitted", "softmax_over_one", "discarded_input"]),
    severity=st.floats(0, 1),
    title=words,
    evidence=st.dictionaries(words, st.floats() | st.integers() | words, max_size=12),
    where=st.lists(words, max_size=40).map(tuple),
    theory=words,
    cure=st.builds(Cure, words, is_tried=st.booleans()),
    advice=st.booleans(),
    line=st.just("") | words,
)


@settings(max_examples=25)
@given(st.lists(findings, max_size=6), st.integers(1, 3))
def test_a_diagnosis_fits_on_ten_lines(found: list[Finding], batches: int) -> None:
    diagnosis = Diagnosis(
        (Check("a check", "a summary", tuple(found)), Check("another", "", asked=False)), (), batches
    )
    lines = str(diagnosis).splitlines()
    assert len(lines) <= 10
    assert max(map(len, lines)) <= 118
    kinds = [own.kind for own in diagnosis.findings]
    if {"softmax_over_one", "discarded_input"} <= {*kinds}:
        assert kinds.index("discarded_input") > kinds.index("softmax_over_one")
    assert all(own.title.split()[0] in diagnosis.full() for own in found)


def _network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2))


def _loss(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def test_a_step_is_judged_on_copies() -> None:
    """A right step that is left in evaluation mode; other wrong ones are in the catalogue of faults."""

    def left_in_evaluation(model: nn.Module, batch: Any, optimizer: Optimizer) -> None:
        optimizer.zero_grad()
        _loss(model, batch).backward()
        optimizer.step()
        model.eval()

    x = torch.randn(32, 8, generator=torch.Generator().manual_seed(1))
    model = _network()
    optimizer = Adam(model.parameters(), 1e-2)
    before = [parameter.clone() for parameter in model.parameters()]
    batch = (x, (x[:, 0] > 0).long())
    diagnosis = nl.diagnose(model, batch, optimizer=optimizer, step=left_in_evaluation)
    assert [own.kind for own in diagnosis.findings] == ["left_in_evaluation"]
    assert all(map(torch.equal, before, model.parameters()))
    assert not optimizer.state
    assert model.training


def test_steps_and_optimizers_that_cannot_be_run() -> None:
    model, batch = _network(), (torch.randn(4, 8), torch.arange(4) % 2)
    with pytest.raises(InputsError, match=r"step\(model, batch, optimizer\)"):
        nl.diagnose(model, batch, optimizer=Adam(model.parameters()), step=lambda model: 1)
    with pytest.raises(InputsError, match="class Adam"):
        nl.diagnose(model, batch, optimizer=Adam)  # type: ignore[arg-type]
    with pytest.raises(InputsError, match="got str"):
        nl.diagnose(model, batch, optimizer="Adam")  # type: ignore[arg-type]


def test_several_optimizers_are_one() -> None:
    """Matrices and vectors in two optimizers: the same checks as one optimizer of two groups."""
    x = torch.randn(32, 8, generator=torch.Generator().manual_seed(1))
    batch = x, (x[:, 0] > 0).long()
    model = _network()
    matrices, vectors = ([own for own in model.parameters() if (own.dim() > 1) is wide] for wide in (True, False))
    two = nl.diagnose(model, batch, optimizer=[Adam(matrices, 1e-2), Adam(vectors, 1e-3)])
    groups = [{"params": matrices, "lr": 1e-2}, {"params": vectors, "lr": 1e-3}]
    together = nl.diagnose(model, batch, optimizer=Adam(groups))
    assert {own.name: own.summary for own in two.checks} == {own.name: own.summary for own in together.checks}
    half = nl.diagnose(model, batch, optimizer=[Adam(matrices, 1e-2), Adam(vectors[:1], 1e-3)])
    assert "untrained_parameters" in [own.kind for own in (*half.findings, *half.advice)]


def test_a_budget_is_kept_and_what_it_leaves_out_is_said() -> None:
    """No experiment begins beyond the budget; those that began are finished."""
    x, y = torch.randn(32, 8, generator=torch.Generator().manual_seed(1)), torch.arange(32) % 2
    model = _network()
    counted = 0

    class Counted(Adam):
        def step(self, closure: Any = None) -> Any:
            nonlocal counted
            counted += 1
            return super().step(closure)

    optimizer = Counted(model.parameters(), 1e-9)
    free = nl.diagnose(model, (x, y), optimizer=optimizer)
    all_steps, counted = counted, 0
    tight = nl.diagnose(model, (x, y), optimizer=optimizer, budget=10)
    assert 10 <= counted <= 10 + 60 < all_steps
    assert not any(own.is_left_out for own in free.checks)
    left = [own.name for own in tight.checks if own.is_left_out]
    assert left
    assert f"left out by the budget: {left[0]}" in str(tight)


@pytest.mark.parametrize("several", [False, True])
def test_batches_of_a_loader(several: bool) -> None:
    """A loader is several batches; a list of two inputs and two targets, as it makes them, is a single one."""

    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Linear(8, 2)

        def forward(self, both: list[Tensor]) -> Tensor:
            return self.layer(torch.cat(both, 1))

    x, label = torch.randn(96, 8, generator=torch.Generator().manual_seed(1)), torch.arange(96) % 2
    rows = [((x[i, :4], x[i, 4:]), (label[i], label[i])) for i in range(len(x))]
    loader = torch.utils.data.DataLoader(rows, batch_size=8)
    model = Pair()
    given = loader if several else next(iter(loader))
    diagnosis = nl.diagnose(
        model, given, loss=lambda out, y: F.cross_entropy(out, y[0]), optimizer=Adam(model.parameters(), 1e-2)
    )
    assert diagnosis.batches == (12 if several else 1)
    assert [own.asked for own in diagnosis.checks if own.name == "other batches"] == [several]


def test_the_facts_are_tables_of_what_autograd_says() -> None:
    """Gradients, losses and shapes of the tables are those of a plain pass."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4))
    inputs, targets = torch.randn(6, 3, 8, 8), torch.tensor([0, 1, 2, 3, 0, 1])
    tables = nl.diagnose(
        model, (inputs, targets), optimizer=torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.01)
    ).tables
    loss = nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()  # type: ignore[no-untyped-call]
    rows = tables["parameters"].set_index("name")
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        gradient = float(parameter.grad.norm())
        assert rows.loc[name, "gradient"] == pytest.approx(gradient, rel=1e-5)
        assert rows.loc[name, "decay_to_gradient"] == pytest.approx(
            0.01 * float(parameter.detach().norm()) / gradient, rel=1e-5
        )
        assert rows.loc[name, "update"] == pytest.approx(
            0.1 * float((parameter.grad + 0.01 * parameter).detach().norm() / parameter.detach().norm()), rel=1e-4
        )
    assert rows["share_of_gradient"].sum() == pytest.approx(1.0)
    assert tables["loss"].set_index("loss").loc["in training mode", "value"] == pytest.approx(
        float(loss.detach()), rel=1e-5
    )
    assert list(tables["batch"]["shape"]) == [(6, 3, 8, 8), (6,)]
    assert tables["operations"]["operation"].tolist().count("conv2d") == 1
    assert tables["classes"]["target_share"].tolist() == pytest.approx([2 / 6, 2 / 6, 1 / 6, 1 / 6])
    assert tables["trials"]["loss"].iloc[0] == pytest.approx(float(loss.detach()), rel=1e-5)


@given(st.lists(st.sampled_from(sorted(EXPLAINS)), unique=True), st.randoms())
def test_causes_come_before_consequences(kinds: list[str], random: Any) -> None:
    """Whatever else was found, and in whatever order with whatever severity."""
    made = [Finding(kind, random.random(), kind, {}, (), "", Cure("")) for kind in kinds]
    order = [known.kind for known in in_order(made)]
    assert sorted(order) == sorted(kinds)
    for number, kind in enumerate(order):
        assert not EXPLAINS[kind] & set(order[:number])


def test_the_page_shows_what_explains_what() -> None:
    """The table of the page is that of the findings."""
    page = (Path(__file__).parents[3] / "docs" / "diagnosis.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\w+)` \| before (.*) \|$", page, re.MULTILINE)
    shown = {kind: set(re.findall(r"`(\w+)`", explained)) for kind, explained in rows}
    assert shown == {kind: explained for kind, explained in EXPLAINS.items() if explained}


def test_growth_beyond_float32_is_the_cause_of_later_values_that_are_not_finite() -> None:
    """Its sums are finite, and the fourth power of the last one is not."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(24))
            for block in self.blocks:
                nn.init.normal_(block.weight, std=2.0)  # type: ignore[arg-type]
            self.head = nn.Linear(16, 2)

        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                x = x + block(x).relu()
            return self.head(x.pow(4))

    x = torch.randn(32, 16, generator=torch.Generator().manual_seed(1))
    found = [own.kind for own in nl.diagnose(Net(), (x, (x[:, 0] > 0).long()), trial_steps=0).findings]
    assert found[0] == "growing_variance"
    assert "not_finite" in found
