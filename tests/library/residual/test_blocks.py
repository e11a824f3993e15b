"""The map as data: paths, roles, printing."""

from __future__ import annotations

import torch

from normless import residual_map
from normless.models import wide_resnet
from normless.residual import Layer, ResidualBlock, ResidualMap


def test_shared_pre_activations_are_down_where_the_skip_path_projects() -> None:
    roles = residual_map(wide_resnet(16, 1)).norms
    assert roles == {
        **{f"blocks.{index}.norm2": "last" for index in range(6)},
        **{f"blocks.{index}.norm1": "other" for index in (0, 1, 3, 5)},
        **{f"blocks.{index}.norm1": "down" for index in (2, 4)},
        "norm": "other",
    }


def test_norm_behind_the_sum_of_a_norm_free_branch_is_last() -> None:
    branch = (Layer("f", "weight"),)
    post = ResidualBlock("b", branch_layers=branch, after_sum=(Layer("n", "norm"),))
    both = ResidualBlock("c", branch_layers=(*branch, Layer("m", "norm")), after_sum=(Layer("o", "norm"),))
    assert ResidualMap((post, both)).norms == {"n": "last", "m": "last", "o": "other"}


def test_layers_of_every_kind_come_in_execution_order() -> None:
    model = wide_resnet(16, 2)
    ran: list[str] = []
    listed = [layer.path for layer in residual_map(model).layers()]
    for path in listed:
        model.get_submodule(path).register_forward_hook(lambda *_, path=path: ran.append(path))
    model(torch.zeros(2, 3, 8, 8))
    # The skip path's convolution runs before the branch here; the map lists the branch first.
    without_skip = [path for path in listed if "shortcut" not in path]
    assert [path for path in ran if "shortcut" not in path] == without_skip
    assert sorted(ran) == sorted(listed)
