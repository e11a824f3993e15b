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
from benchmarks.census import measure, networks, report, stated
from benchmarks.census.__main__ import main
from benchmarks.census.checks import same_blocks
from benchmarks.census.examine import CHECKS, Row, examine
from benchmarks.census.measure import CensusBench, measure_census
from benchmarks.census.networks import Network
from benchmarks.census.operators import count_operators
from normless.errors import UnsupportedEditError

OURS = Network("ours", "resnet_cifar(8)", "randn(2, 3, 8, 8)", ("normless.models",))
INVERTED = "MobileNetV2(inverted_residual_setting=[[1, 8, 1, 1], [2, 8, 3, 1]])"
FOREIGN = Network("torchvision", INVERTED, "randn(2, 3, 16, 16)", ("torchvision.models",))
PLAIN = Network(
    "torch", "nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())", "randn(2, 3, 8, 8)", ("torch",)
)
IMAGES = torch.randn(2, 3, 16, 16)


@pytest.mark.parametrize("network", [OURS, FOREIGN])
def test_whole_conversions_pass_every_check(network: Network) -> None:
    row = examine(network, 0)
    asked = ("built", "exported", "mapped", "folded", "skipinit_alpha_1", "skipinit", "fixup", *CHECKS)
    assert {name: getattr(row, name) for name in asked} == dict.fromkeys(asked, "yes")
    assert row.blocks == 3
    assert "native_batch_norm in training" in row.norms_before
    assert min(row.export_seconds, row.map_seconds, row.convert_seconds) > 0
    assert (row.mode, row.dtype) == ("train", "float64")


def test_refusals_and_faults_of_the_table_are_told() -> None:
    row = examine(PLAIN, 0)
    assert row.skipinit.startswith("refused UnsupportedEditError: ")
    assert "no residual block" in row.skipinit
    assert (row.mapped, row.folded, row.fold_equal, row.no_norms) == ("yes", "yes", "yes", "")
    assert examine(replace(OURS, text="resnet_cifar(7)"), 0).built.startswith("raw ValueError")
    assert examine(replace(OURS, inputs="randn(2, 5, 8, 8)"), 0).built.startswith("raw RuntimeError")


class WaveNet(nn.Module):
    """Blocks that share a layer between their residual branch and the output, which adds the rest of each block."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head, self.norm = nn.Conv1d(4, 8, 1), nn.Conv1d(8, 2, 1), nn.BatchNorm1d(8)
        self.gate, self.residual, self.skip = (nn.Conv1d(8, 8, 1) for _ in range(3))

    def forward(self, sound: Tensor) -> Tensor:
        stream = self.stem(sound)
        inner = torch.tanh(self.norm(self.gate(stream)))
        output: Tensor = self.head(torch.cat([self.skip(inner), stream + self.residual(inner)], 2))
        return output


class Sum(nn.Module):
    """A layer and its norm side by side with another module."""

    def __init__(self, beside: nn.Module) -> None:
        super().__init__()
        self.beside, self.conv, self.bn = beside, nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.beside(x) + self.bn(self.conv(x))  # type: ignore[no-any-return]


def test_a_branch_that_is_read_elsewhere_is_inert_at_its_end() -> None:
    row = examine(Network("ours", "WaveNet()", "randn(2, 4, 8)", (__name__,)), 0)
    assert (row.blocks, row.skipinit, row.inert) == (1, "yes", "yes")


def test_what_is_left_of_a_norm_beside_a_layer_is_no_other_block() -> None:
    """As in RepVGG (Ding et al. 2021), outside any residual block; then a block."""
    layers = (nn.Conv2d(3, 4, 3), nn.ReLU(), Sum(nn.BatchNorm2d(4)), nn.ReLU(), Sum(nn.Identity()))
    model = nn.Sequential(*layers)
    before = nl.residual_map(model, IMAGES)
    after = nl.residual_map(nl.convert(model, "skipinit(alpha=1)", IMAGES), IMAGES)
    assert [one.name for one in before.blocks] == ["4"]
    assert [one.name for one in after.blocks] == ["2", "4"]
    assert same_blocks(after, before) == ""
    assert same_blocks(before, replace(before, blocks=())) == "1 blocks, the original has 0"


class Changed(nn.Module):
    """A network with a change of its output, in some modes."""

    def __init__(self, network: nn.Module, change: Callable[[Tensor], Tensor], modes: tuple[bool, ...]) -> None:
        super().__init__()
        self.network, self.change, self.modes = network, change, modes

    def forward(self, images: Tensor) -> Tensor:
        output: Tensor = self.network(images)
        return self.change(output) if self.training in self.modes else output


def normed(output: Tensor) -> Tensor:
    return F.layer_norm(output, output.shape[1:])


def set_multipliers(model: nn.Module, value: float) -> nn.Module:
    for name, parameter in model.named_parameters():
        if name.endswith("multiplier"):
            parameter.data.fill_(value)
    return model


def scale_none(original: nn.Module, converted: nn.Module, scheme: str) -> nn.Module:
    next(converted.parameters()).data.mul_(1.001 if scheme.startswith("none") else 1)
    return converted


def drop_block(original: nn.Module, converted: nn.Module, scheme: str) -> nn.Module:
    path = nl.residual_map(original, IMAGES).blocks[-1].name
    parent, _, name = path.rpartition(".")
    setattr(converted.get_submodule(parent), name, nn.Identity())
    return converted


def change_original(original: nn.Module, converted: nn.Module, scheme: str) -> nn.Module:
    next(original.parameters()).data.add_(1)
    return converted


def fail(*_: object) -> nn.Module:
    raise TypeError("unhashable type")


def refuse(*_: object) -> nn.Module:
    raise UnsupportedEditError("No place for it.")


BOTH, OPEN = (True, False), 1e-3


@pytest.mark.parametrize(
    ("breaking", "column", "said"),
    [
        (
            lambda _, made, scheme: Changed(made, normed, BOTH),
            "no_norms",
            "1 native_layer_norm in evaluation, 1 native",
        ),
        (lambda _, made, scheme: Changed(made, normed, (True,)), "no_norms", "1 native_layer_norm in training"),
        (lambda _, made, scheme: set_multipliers(made, OPEN if scheme == "skipinit" else 1), "inert", "with α = 0 "),
        (lambda _, made, scheme: set_multipliers(made, 0.0), "inert", "with α = 1 branch weights do not change"),
        (scale_none, "as_none", "outputs differ by"),
        (
            lambda _, made, scheme: Changed(made, lambda y: y - y.mean(0), BOTH),
            "per_example",
            "example 0 alone differs",
        ),
        (drop_block, "same_map", "2 blocks, the original has 3"),
        (change_original, "unchanged", "stem.weight and 0 more changed"),
        (fail, "skipinit", "raw TypeError: unhashable type"),
        (refuse, "fixup", "refused UnsupportedEditError: No place for it."),
    ],
)
def test_a_broken_conversion_fails_its_check(
    breaking: Callable[..., nn.Module], column: str, said: str, monkeypatch: pytest.MonkeyPatch
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
        next(folded.parameters()).data.mul_(1 + 1e-6)
        return folded, fates

    monkeypatch.setattr(nl, "fold", broken)
    assert examine(OURS, 0).fold_equal.startswith("outputs differ by")


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


def test_the_tables_name_500_networks_and_statements_are_of_them() -> None:
    listed = [network for package in networks.tables() for network in networks._read(package)]
    assert len(listed) >= 500
    assert len({(network.package, network.text, network.inputs) for network in listed}) == len(listed)
    assert len(networks.tables()) == 14
    for network in listed:
        for text in (network.text, network.inputs, network.training or "0", *network.shared.values()):
            compile(text, network.package, "eval")
    for package in networks.tables():
        texts = {network.text for network in listed if network.package == package}
        for text, statement in stated.statements(package).items():
            assert text in texts
            blocks = stated._stated(statement["blocks"], {}, 0)
            assert not any(set("{} ") & set(path) for block in blocks for path in sum(block.branches, ()))


@pytest.mark.slow
def test_a_census_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stuck = replace(PLAIN, text="__import__('signal').pause()")
    listed = [PLAIN]
    monkeypatch.setattr(measure, "networks", lambda packages, count: tuple(listed))
    bench = CensusBench(workers=1, limit=30, out=tmp_path)
    assert measure_census(bench)["networks"].tolist() == [1]
    listed.append(stuck)
    summary = measure_census(replace(bench, limit=2))
    assert capsys.readouterr().err.count(PLAIN.text) == 1
    assert (summary["networks"].tolist(), summary["ran"].tolist()) == ([2], [1])
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
    whole = dict.fromkeys((*CHECKS, "built", "skipinit_alpha_1"), "yes") | {"blocks": 2, "norms_before": "4"}
    changes: list[dict[str, Any]] = [
        {"convert_seconds": 3.0, "export_seconds": 2.0},
        {"no_norms": "1 native_batch_norm in training"},
        {"inert": "with α = 0 branch weights change the output by 1.0e+00"},
        {"fixup": "raw TypeError: unhashable [edits/edit.py:1]"},
        {"skipinit_alpha_1": "refused LiftError: No."},
        {"stated": "yes"},
        {"stated": "3 norms, stated 4"},
    ]
    rows = [Row("timm", name, 0, **whole | change) for name, change in zip("abcdefg", changes, strict=True)]
    table = pd.DataFrame([vars(row) for row in rows])
    line = report.summary(table).to_dict("records")[0]
    assert (line["whole"], line["refused"], line["raw"], line["partial"], line["wrong"]) == ("5/7", 1, 1, 1, 1)
    assert (line["ratio"], line["stated right"]) == ("1.50", "1/2")
    report.write_report(table, tmp_path / "census.md")
    text = (tmp_path / "census.md").read_text()
    for said in ("1 native_batch_norm in training", "α = 0 branch weights", "raw TypeError: unhashable"):
        assert said in text
    assert "refused LiftError: No." in text
    assert "| `g` | timm | 3 norms, stated 4 |" in text
