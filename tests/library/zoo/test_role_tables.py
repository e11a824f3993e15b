"""The role of every γ in networks of libraries, by patterns that a person reads off the architectures.

`stem`: before the first block. `last`: the last norm of a branch, or the norm behind the sum where the branch has
none. `down`: on a skip path, or the pre-activation that a projecting block shares between branch and skip path.
"""

from __future__ import annotations

from collections import Counter

import pytest
from gallery.row import Row, differences
from gallery.zoo import timm_network, torchvision_network

from normless import residual_map

BOTTLENECKS = "stem: bn1; last: *.bn3; down: *.downsample.1; other: *.bn1 *.bn2"
COUNTS = {"stem": 1, "last": 16, "down": 4, "other": 32}
SIDES = "last: blocks.*.attns.*.norm blocks.*.ffns.*.norm; other: norm"
TABLES = {
    "resnet18": ({}, "stem: bn1; last: *.bn2; down: *.downsample.1; other: *.bn1",
                 {"stem": 1, "last": 8, "down": 3, "other": 8}),
    "resnet50": ({}, BOTTLENECKS, COUNTS),
    # No norm in the stem, one behind the last block; norm1 of each stage's first block lies before the fork.
    "resnetv2_50": ({}, "last: *.norm3; down: stages.*.blocks.0.norm1; other: *",
                    {"last": 16, "down": 4, "other": 12 + 16 + 1}),
    "vit_tiny_patch16_224": ({"img_size": 32}, "last: blocks.*; other: norm", {"last": 24, "other": 1}),
    "vit_small_patch16_18x2_224": ({"img_size": 32, "depth": 3}, SIDES, {"last": 12, "other": 1}),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_roles_are_those_of_the_table(name: str) -> None:
    options, roles, counts = TABLES[name]
    ours = timm_network if "v" in name.partition("_")[0] else torchvision_network
    row = Row(name, "zoo", lambda: ours(name, options), f"zeros(2, 3, {', '.join(2 * ['32' if options else '64'])})")
    found = residual_map(row.network(), *row.example()[0], strict=True)
    stated = Row(name, "zoo", row.build, row.inputs, roles=roles)
    assert differences(stated, found) == []
    assert Counter(found.norms.values()) == counts
