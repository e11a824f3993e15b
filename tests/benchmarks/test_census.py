"""The census: what it says of whole conversions, and that each of its checks fails where a conversion is broken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normless as nl
from benchmarks.census import measure, networks, report
from benchmarks.census.__main__ import main
from benchmarks.census.examine import CHECKS, Row, examine
from benchmarks.census.measure import CensusBench, measure_census
from benchmarks.census.networks import Network
from benchmarks.census.operators import count_operators
from normless.errors import UnsupportedEditError

OURS = Network("ours", "resnet_cifar(8)", "randn(2, 3, 8, 8)", ("normless.models",))
FOREIGN = Network(
    "torchvision",
    "MobileNetV2(inverted_residual_setting=[[1, 8, 1, 1], [2, 8, 3, 1]])",
    "randn(2, 3, 16, 16)",
    ("torchvision.models",),
)
PLAIN = Network(
    "torch", "nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())", "randn(2, 3, 8, 8)", ("torch",)
)


@pytest.mark.parametrize("network", [OURS, FOREIGN])
def test_whole_conversions_pass_every_check(network: Network) -> None:
    row = examine(network, 0)
    assert (row.built, row.exported, row.mapped, row.folded) == ("yes",) * 4
    assert (row.skipinit_alpha_1, row.skipinit, row.fixup) == ("yes",) * 3
    assert {name: getattr(row, name) for name in CHECKS} == dict.fromkeys(CHECKS, "yes")
    assert row.blocks == {"ours": 3, "torchvision": 3}[network.package]
    assert "native_batch_norm in training" in row.norms_before
    assert min(row.export_seconds, row.map_seconds, row.convert_seconds) > 0
    assert (row.mode, row.dtype) == ("train", "float64")


def test_refusals_are_told_with_their_reason() -> None:
    row = examine(PLAIN, 0)
    assert row.skipinit.startswith("refused UnsupportedEditError: ")
    assert "no residual block" in row.skipinit
    assert (row.mapped, row.folded, row.fold_equal, row.no_norms) == ("yes", "yes", "yes", "")


def test_a_network_that_does_not_run_is_a_fault_of_the_table() -> None:
    assert examine(replace(OURS, text="resnet_cifar(7)"), 0).built.startswith("raw ValueError")
    assert examine(replace(OURS, inputs="randn(2, 5, 8, 8)"), 0).built.startswith("raw RuntimeError")


class WaveNet(nn.Module):
    """Blocks that share a layer between their residual branch and the output, which adds the rest of each block."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv1d(4, 8, 1), nn.Conv1d(8, 2, 1)
        self.gates = nn.ModuleList(nn.Conv1d(8, 8, 3, padding=1) for _ in range(3))
        self.norms = nn.ModuleList(nn.BatchNorm1d(8) for _ in range(3))
        self.residuals, self.skips = (nn.ModuleList(nn.Conv1d(8, 8, 1) for _ in range(3)) for _ in range(2))

    def forward(self, sound: Tensor) -> Tensor:
        stream = self.stem(sound)
        total = []
        for gate, norm, residual, skip in zip(self.gates, self.norms, self.residuals, self.skips, strict=True):
            inner = torch.tanh(norm(gate(stream)))
            total.append(skip(inner))
            stream = stream + residual(inner)
        output: Tensor = self.head(torch.cat([*total, stream], 2))
        return output


def test_a_branch_that_is_read_elsewhere_is_inert_at_its_end() -> None:
    row = examine(Network("ours", "WaveNet()", "randn(2, 4, 8)", (__name__,)), 0)
    assert (row.blocks, row.skipinit, row.inert) == (3, "yes", "yes")


Breaking = Callable[[nn.Module, nn.Module, str], nn.Module]


class AddsNorm(nn.Module):
    """A network with a norm of its output, in some modes."""

    def __init__(self, network: nn.Module, modes: tuple[bool, ...] = (True, False)) -> None:
        super().__init__()
        self.network, self.modes = network, modes

    def forward(self, images: Tensor) -> Tensor:
        output: Tensor = self.network(images)
        return F.layer_norm(output, output.shape[1:]) if self.training in self.modes else output


class MixesExamples(AddsNorm):
    def forward(self, images: Tensor) -> Tensor:
        output: Tensor = self.network(images)
        return output - output.mean(0)


def leave_norm(original: nn.Module, converted: nn.Module, scheme: str) -> nn.Module:
    return AddsNorm(converted)


def leave_norm_in_training(original: nn.Module, converted: nn.Module, scheme: str) -> nn.Module:
    return AddsNorm(converted, modes=(True,))


def open_branches(original: nn.Module, converted: nn.Module, scheme: str) -> nn.Module:
    return set_multipliers(converted, 1e-3) if scheme == "skipinit" else converted


def close_branches(original: nn.Module, converted: nn.Module, scheme: str) -> nn.Module:
    return set_multipliers(converted, 0.0)


def scale_none(original: nn.Module, converted: nn.Module, scheme: str) -> nn.Module:
    with torch.no_grad():
        next(converted.parameters()).mul_(1.001 if scheme.startswith("none") else 1)
    return converted


def mix_examples(original: nn.Module, converted: nn.Module, scheme: str) -> nn.Module:
    return MixesExamples(converted)


def drop_block(original: nn.Module, converted: nn.Module, scheme: str) -> nn.Module:
    path = nl.residual_map(original, torch.randn(2, 3, 16, 16)).blocks[-1].name
    parent, _, name = path.rpartition(".")
    setattr(converted.get_submodule(parent), name, nn.Identity())
    return converted


def change_original(original: nn.Module, converted: nn.Module, scheme: str) -> nn.Module:
    with torch.no_grad():
        next(original.parameters()).add_(1)
    return converted


def fail(original: nn.Module, converted: nn.Module, scheme: str) -> nn.Module:
    raise TypeError("unhashable type")


def set_multipliers(model: nn.Module, value: float) -> nn.Module:
    for name, parameter in model.named_parameters():
        if name.endswith("multiplier"):
            parameter.data.fill_(value)
    return model


@pytest.mark.parametrize(
    ("breaking", "column", "said"),
    [
        (leave_norm, "no_norms", "1 native_layer_norm in evaluation, 1 native_layer_norm in training"),
        (leave_norm_in_training, "no_norms", "1 native_layer_norm in training"),
        (open_branches, "inert", "with α = 0 branch weights change the output"),
        (close_branches, "inert", "with α = 1 branch weights do not change the output"),
        (scale_none, "as_none", "outputs differ by"),
        (mix_examples, "per_example", "example 0 alone differs"),
        (drop_block, "same_map", "2 blocks, the original has 3"),
        (change_original, "unchanged", "stem.weight and 0 more changed"),
        (fail, "skipinit", "raw TypeError: unhashable type"),
    ],
)
def test_a_broken_conversion_fails_its_check(
    breaking: Breaking, column: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert = nl.convert

    def broken(model: nn.Module, scheme: str, *inputs: Any, **kwargs: Any) -> nn.Module:
        return breaking(model, convert(model, scheme, *inputs, **kwargs), scheme)

    monkeypatch.setattr(nl, "convert", broken)
    # Ours states its map, which a missing block would not change.
    assert getattr(examine(FOREIGN if breaking is drop_block else OURS, 0), column).startswith(said)


def test_a_broken_fold_fails_its_check(monkeypatch: pytest.MonkeyPatch) -> None:
    fold = nl.fold

    def broken(model: nn.Module, *inputs: Any) -> Any:
        folded, fates = fold(model, *inputs)
        with torch.no_grad():
            next(folded.parameters()).mul_(1 + 1e-6)
        return folded, fates

    monkeypatch.setattr(nl, "fold", broken)
    assert examine(OURS, 0).fold_equal.startswith("outputs differ by")


def test_an_error_on_purpose_is_no_raw_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> nn.Module:
        raise UnsupportedEditError("No place for it.")

    monkeypatch.setattr(nl, "convert", refuse)
    assert examine(OURS, 0).fixup == "refused UnsupportedEditError: No place for it."


class OwnForward(nn.Module):
    def __init__(self, function: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 4, 1))
        self.function = function

    def forward(self, value: Tensor) -> Tensor:
        return self.function(self, value)


@pytest.mark.parametrize(
    ("function", "norms", "statistics"),
    [
        (lambda own, x: F.batch_norm(x, None, None, training=True), 1, 0),
        (lambda own, x: F.instance_norm(x), 1, 0),
        (lambda own, x: F.group_norm(x.clone().mul_(2), 2), 1, 0),
        (lambda own, x: F.layer_norm(x.transpose(1, 2), (4,)), 1, 0),
        (lambda own, x: F.normalize(x, dim=1), 0, 1),
        (lambda own, x: x * (x * x).mean(1, keepdim=True).add(1e-6).rsqrt(), 0, 1),
        (lambda own, x: F.conv1d(x, F.layer_norm(own.weight, (4, 1))), 0, 0),
        (lambda own, x: torch.zeros_like(own.weight[0]).copy_(x[0, :, :1]).var() * x, 0, 1),
    ],
    ids=["batch", "instance", "group", "layer", "normalize", "by hand", "of a weight", "through memory"],
)
def test_norms_of_activations_are_counted(
    function: Callable[[nn.Module, Tensor], Tensor], norms: int, statistics: int
) -> None:
    counted = count_operators(OwnForward(function), (torch.randn(2, 4, 6),), {})
    assert (counted.norms.total(), counted.statistics.total()) == (norms, statistics)


def test_the_tables_name_500_networks() -> None:
    listed = [network for package in networks.tables() for network in networks._read(package)]
    assert len(listed) >= 500
    assert len({(network.package, network.text, network.inputs) for network in listed}) == len(listed)
    assert len(networks.tables()) == 14
    for network in listed:
        for text in (network.text, network.inputs, network.training or "0", *network.shared.values()):
            compile(text, network.package, "eval")


@pytest.mark.slow
def test_a_census_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stuck = replace(PLAIN, text="__import__('time').sleep(600)")
    listed = [PLAIN, stuck]
    monkeypatch.setattr(measure, "networks", lambda packages, count: tuple(listed))
    bench = CensusBench(workers=1, limit=30, out=tmp_path)
    listed.pop()
    assert measure_census(bench)["networks"].tolist() == [1]
    listed.append(stuck)
    summary = measure_census(replace(bench, limit=2))
    assert capsys.readouterr().err.count(PLAIN.text) == 1
    assert summary["networks"].tolist() == [2]
    assert summary["ran"].tolist() == [1]
    rows = pd.read_csv(tmp_path / "census.csv", keep_default_na=False)
    assert rows["built"].tolist() == ["yes", "ended TimeoutError: more than 2 seconds"]
    text = (tmp_path / "census.md").read_text()
    assert f"torch {torch.__version__}" in text
    assert "it has no residual block" in text
    monkeypatch.setattr("sys.argv", ["census", "--out", str(tmp_path)])
    main()
    header, line = (text.split() for text in capsys.readouterr().out.splitlines())
    assert dict(zip(header, line, strict=False))["refused"] == "1"


def test_the_report_says_what_should_not_have_happened(tmp_path: Path) -> None:
    whole = dict.fromkeys(CHECKS, "yes") | {
        "built": "yes",
        "blocks": 2,
        "norms_before": "4",
        "skipinit_alpha_1": "yes",
    }
    rows = [
        Row("timm", "a", 0, **whole, convert_seconds=3.0, export_seconds=2.0),
        Row("timm", "b", 0, **whole | {"no_norms": "1 native_batch_norm in training"}),
        Row("timm", "c", 0, **whole | {"inert": "with α = 0 branch weights change the output by 1.0e+00"}),
        Row("timm", "d", 0, **whole | {"fixup": "raw TypeError: unhashable [edits/edit.py:1]"}),
        Row("timm", "e", 0, **whole | {"skipinit_alpha_1": "refused LiftError: No."}),
        Row("timm", "f", 0, **whole | {"stated": "yes"}),
        Row("timm", "g", 0, **whole | {"stated": "3 norms, stated 4"}),
    ]
    table = pd.DataFrame([vars(row) for row in rows])
    line = report.summary(table).to_dict("records")[0]
    assert (line["whole"], line["refused"], line["raw"], line["partial"], line["wrong"]) == ("5/7", 1, 1, 1, 1)
    assert (line["ratio"], line["stated right"]) == ("1.50", "1/2")
    report.write_report(table, tmp_path / "census.md")
    text = (tmp_path / "census.md").read_text()
    for said in (
        "1 native_batch_norm in training",
        "α = 0 branch weights",
        "raw TypeError: unhashable",
        "refused LiftError: No.",
        "| `g` | timm | 3 norms, stated 4 |",
    ):
        assert said in text
