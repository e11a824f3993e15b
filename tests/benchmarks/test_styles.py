"""Networks in the styles of public packages: maps are as stated, conversions pass the checks of the census."""

from __future__ import annotations

from typing import Any

import pytest
import style_dense
import style_images
import style_sequences
import style_series
from style_table import STYLES, read

import normless as nl
from benchmarks.census.examine import CHECKS, examine
from benchmarks.census.networks import Network

MODULES = (style_images, style_dense, style_sequences, style_series)
# Spectrally normalized weights, whose scale has no effect; branches that end in a ReLU, which is flat at zero.
REFUSED_BY_FIXUP = {
    "Discriminator": "divided by its own norm",
    "TCN": "never get a gradient",
    "InceptionTime": "never get a gradient",
}
# A few of each kind; the others are slow.
QUICK = {"CifarResNet", "DenseNet", "FTTransformer", "GPT", "TCN", "WaveNet"}
assert {one.module for one in STYLES.values()} == {module.__name__ for module in MODULES}


def census_network(name: str) -> Network:
    style = STYLES[name]
    return Network("styles", f"{name}()", style.inputs, (style.module,), batched=style.batched)


def plain(block: nl.ResidualBlock) -> dict[str, Any]:
    branches = [[layer.path for layer in branch if layer.kind == "weight"] for branch in block.branches]
    return {"branches": branches, "skip": list(block.skip), "inner": [plain(inner) for inner in block.inner]}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in STYLES]
)
def test_the_map_is_as_stated_and_the_conversion_passes_the_checks_of_the_census(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    residual_map, maps, stated = nl.residual_map, [], STYLES[name]

    def recorded(*args: Any, **kwargs: Any) -> nl.ResidualMap:
        maps.append(residual_map(*args, **kwargs))
        return maps[-1]

    monkeypatch.setattr(nl, "residual_map", recorded)
    # What the census times by itself; the map exports the network too.
    monkeypatch.setattr("benchmarks.census.examine.export", lambda *args, **kwargs: None)
    row = examine(census_network(name), 0)
    assert (row.built, row.mapped, row.unresolved, row.mode) == ("yes", "yes", "", "train")
    assert [plain(block) for block in maps[0].blocks] == [read(block) for block in stated.blocks]
    assert not stated.blocks or maps[0].stem == stated.stem
    if not stated.blocks:
        assert "no residual block" in row.skipinit
        return
    assert (row.skipinit_alpha_1, row.skipinit) == ("yes",) * 2
    shortest = min(len(branch) for block in stated.blocks for branch in read(block)["branches"])
    if name in REFUSED_BY_FIXUP:
        assert REFUSED_BY_FIXUP[name] in row.fixup
    else:
        assert row.fixup == "yes" if shortest > 1 else "needs m ≥ 2" in row.fixup
    may_lack = {"fold_equal"} if not row.folded else set()
    may_lack |= set() if stated.batched else {"per_example"}
    assert {name: getattr(row, name) for name in CHECKS} == {
        name: "" if name in may_lack else "yes" for name in CHECKS
    }
