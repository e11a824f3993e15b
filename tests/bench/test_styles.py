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
from normless.bench.census.examine import CHECKS, examine
from normless.bench.census.networks import Network

MODULES = (style_images, style_dense, style_sequences, style_series)
assert {one.module for one in STYLES.values()} == {module.__name__ for module in MODULES}


def census_network(name: str) -> Network:
    style = STYLES[name]
    return Network("styles", f"{name}()", style.inputs, (style.module,), batched=style.batched)


def plain(block: nl.ResidualBlock) -> dict[str, Any]:
    branches = [[layer.path for layer in branch if layer.kind == "weight"] for branch in block.branches]
    return {"branches": branches, "skip": list(block.skip), "inner": [plain(inner) for inner in block.inner]}


@pytest.mark.parametrize("name", STYLES)
def test_the_map_has_the_stated_blocks(name: str) -> None:
    network, stated = census_network(name), STYLES[name]
    inputs, kwargs = network.arguments(0)
    mapped = nl.residual_map(network.build(0), *inputs, strict=True, **kwargs)
    assert [plain(block) for block in mapped.blocks] == [read(block) for block in stated.blocks]
    assert not stated.blocks or mapped.stem == stated.stem


@pytest.mark.parametrize("name", STYLES)
def test_the_whole_conversion_passes_the_checks_of_the_census(name: str) -> None:
    row = examine(census_network(name), 0)
    assert (row.built, row.exported, row.mapped, row.mode) == ("yes", "yes", "yes", "train")
    if not STYLES[name].blocks:
        assert "no residual block" in row.skipinit
        return
    assert (row.skipinit_alpha_1, row.skipinit) == ("yes",) * 2
    shortest = min(len(branch) for block in STYLES[name].blocks for branch in read(block)["branches"])
    assert row.fixup == "yes" if shortest > 1 else "needs m ≥ 2" in row.fixup
    may_lack = {"fold_equal"} if not row.folded else set()
    may_lack |= set() if STYLES[name].batched else {"per_example"}
    assert {name: getattr(row, name) for name in CHECKS} == {
        name: "" if name in may_lack else "yes" for name in CHECKS
    }


def test_there_are_thirty_styles() -> None:
    assert len(STYLES) >= 30
