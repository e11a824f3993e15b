"""Maps of networks that declare their structure: against traced ones, by hand, as tables."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from normless import convert, residual_map
from normless.models import Transformer, dense, resnet_cifar, transformer, wide_resnet
from normless.residual import Layer, ResidualBlock, ResidualMap, traced_map
from normless.residual.blocks import Unresolved
from normless.residual.table import format_blocks, format_map


def test_wide_resnet_by_hand() -> None:
    found = residual_map(wide_resnet(10, 2))
    assert found.depth == 3
    assert found.stem == ("stem",)
    assert found.classifier == "classifier"
    first = found.blocks[0]
    assert first.name == "blocks.0"
    assert first.branch == ("blocks.0.conv1", "blocks.0.conv2")
    assert first.skip == ("blocks.0.shortcut",)
    assert first.norms == ("blocks.0.norm1", "blocks.0.norm2")
    assert first.activations == ("blocks.0.relu1", "blocks.0.relu2")
    assert not first.identity_skip
    assert first.activation_after_sum is None


def test_shared_pre_activations_are_down_where_the_skip_path_projects() -> None:
    roles = residual_map(wide_resnet(16, 1)).norms
    assert roles == {
        **{f"blocks.{index}.norm2": "last" for index in range(6)},
        **{f"blocks.{index}.norm1": "other" for index in (0, 1, 3, 5)},
        **{f"blocks.{index}.norm1": "down" for index in (2, 4)},
        "norm": "other",
    }


def test_resnet_v1_roles() -> None:
    found = residual_map(resnet_cifar(8))
    assert found.norms == {
        "norm": "stem",
        **{f"blocks.{index}.norm1": "other" for index in range(3)},
        **{f"blocks.{index}.norm2": "last" for index in range(3)},
    }
    assert [block.activation_after_sum for block in found.blocks] == [f"blocks.{index}.relu2" for index in range(3)]
    assert [block.identity_skip for block in found.blocks] == [True, False, False]
    assert all(block.skip == () for block in found.blocks)


def test_norm_behind_the_sum_of_a_norm_free_branch_is_last() -> None:
    branch = (Layer("f", "weight"),)
    post = ResidualBlock("b", branch_layers=branch, after_sum=(Layer("n", "norm"),))
    both = ResidualBlock("c", branch_layers=(*branch, Layer("m", "norm")), after_sum=(Layer("o", "norm"),))
    assert ResidualMap((post, both)).norms == {"n": "last", "m": "last", "o": "other"}


def test_dictionary_is_json_and_complete() -> None:
    found = residual_map(resnet_cifar(14))
    data = json.loads(json.dumps(found.to_dict()))
    assert data["depth"] == 6
    assert set(data["blocks"][0]) == {
        "name", "branch", "skip", "identity_skip", "norms", "activations", "activation_after_sum", "branches",
        "gates", "inner", "m",
    }  # fmt: skip
    assert data["norms"] == found.norms
    assert data["stem"] == ["stem"]
    assert data["classifier"] == "classifier"


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


IMAGE = torch.zeros(2, 3, 8, 8)
GRAY = torch.zeros(2, 1, 9, 11)
VECTOR = torch.zeros(6, 30)

NETWORKS = {
    "wide 10-1": (lambda: wide_resnet(10, 1), IMAGE),
    "wide 16-2": (lambda: wide_resnet(16, 2), IMAGE),
    "wide 40-1 gray": (lambda: wide_resnet(40, 1, in_channels=1), GRAY),
    "cifar 8": (lambda: resnet_cifar(8), IMAGE),
    "cifar 20 gray": (lambda: resnet_cifar(20, in_channels=1), GRAY),
    "cifar 44": (lambda: resnet_cifar(44), IMAGE),
    "dense linear 1": (lambda: dense(1, 20, in_features=30, relu=False), VECTOR),
    "dense 7": (lambda: dense(7, 20, in_features=30), VECTOR),
    "dense 3×2": (lambda: dense(3, 20, in_features=30, branch_layers=2), VECTOR),
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_stated_map_is_the_traced_one(name: str, training: bool) -> None:
    build, inputs = NETWORKS[name]
    model = build().train(training)
    assert residual_map(model) == traced_map(model, inputs)


@pytest.mark.parametrize("name", ["wide 16-2", "cifar 8", "dense 3×2"])
@pytest.mark.parametrize("scheme", ["none", "skipinit", "fixup", "ghost_batch_norm(size=2)", "norm_on_skip"])
def test_also_after_conversion(name: str, scheme: str) -> None:
    build, inputs = NETWORKS[name]
    model = convert(build(), scheme)
    assert residual_map(model) == traced_map(model, inputs)


def test_stated_map_of_a_network_1_000_layers_deep_needs_no_trace() -> None:
    with torch.device("meta"):
        model = wide_resnet(1_000, 1)
    found = residual_map(model)
    assert found.depth == 498
    assert found.blocks[-1].branch == ("blocks.497.conv1", "blocks.497.conv2")
    assert "458 more blocks" in str(found)


SCHEMES = ["none", "skipinit", "fixup", "sqrt2", "layer_scale", "deepnorm", "zeroinit", "t_fixup"]


def small(norm: str, layers: int = 2, decoder_layers: int = 1, dropout: float = 0.1) -> Transformer:
    return transformer(20, layers, 8, 2, 12, norm, dropout, decoder_layers)  # type: ignore[arg-type]


@given(
    norm=st.sampled_from(["pre", "post"]),
    layers=st.integers(1, 3),
    decoder_layers=st.integers(1, 3),
    dropout=st.sampled_from([0.0, 0.1]),
    training=st.booleans(),
)
@settings(deadline=None, max_examples=8)
def test_stated_map_of_a_transformer_is_the_traced_one(
    norm: str, layers: int, decoder_layers: int, dropout: float, training: bool
) -> None:
    model = small(norm, layers, decoder_layers, dropout).train(training)
    found = residual_map(model)
    assert found == traced_map(model, *model.example_inputs())
    assert found.depth == 2 * layers + 3 * decoder_layers
    assert {block.m for block in found.blocks} == {2}
    assert found.unresolved == ()


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_transformer_maps_after_conversion(norm: str, scheme: str) -> None:
    if (norm, scheme) == ("pre", "deepnorm"):
        pytest.skip("DeepNorm is for post-norm networks")
    model = small(norm)
    net = convert(model, scheme, *model.example_inputs())
    assert residual_map(net) == traced_map(net, *net.example_inputs())


def test_every_part_of_a_pre_norm_map() -> None:
    found = residual_map(small("pre", 1, 1))
    encoder, _, own, cross, feed_forward = found.blocks
    attention = "decoder.layers.0.cross_attention.attention"
    assert [block.name for block in (encoder, own, cross, feed_forward)] == [
        "encoder.layers.0.self_attention",
        "decoder.layers.0.self_attention",
        "decoder.layers.0.cross_attention",
        "decoder.layers.0.feed_forward",
    ]
    assert cross.branch == tuple(f"{attention}.{name}" for name in ("query", "key", "value", "output"))
    assert cross.gates == ("decoder.layers.0.cross_attention.norm", f"{attention}.query", f"{attention}.key")
    reads = {layer.path.rpartition(".")[2]: layer.input for layer in cross.branch_layers}
    assert reads == {
        "norm": None,
        "query": "decoder.layers.0.cross_attention.norm",
        "key": "encoder.norm",
        "value": "encoder.norm",
        "output": None,
        "dropout": f"{attention}.output",
    }
    assert [layer.path for layer in found.stem_layers] == ["encoder.dropout"]
    assert [layer.path for layer in found.trunk_layers] == ["encoder.norm", "decoder.dropout"]
    assert found.classifier == "classifier"
    roles = found.norms
    assert {roles.pop("encoder.norm"), roles.pop("decoder.norm")} == {"other"}
    assert set(roles.values()) == {"last"}
    assert len(roles) == 5


def test_norms_behind_the_sums_are_last_and_feed_all_three_projections() -> None:
    found = residual_map(small("post", 2, 1, dropout=0.0))
    assert set(found.norms.values()) == {"last"}
    cross = found.blocks[-2]
    assert {layer.path.rpartition(".")[2]: layer.input for layer in cross.branch_layers} == {
        "query": "decoder.layers.0.self_attention.norm",
        "key": "encoder.layers.1.feed_forward.norm",
        "value": "encoder.layers.1.feed_forward.norm",
        "output": None,
    }
    assert [layer.path for layer in cross.after_sum] == ["decoder.layers.0.cross_attention.norm"]
    assert found.classifier == "classifier"


def _weight(path: str, **more: bool) -> Layer:
    return Layer(path, "weight", description=f"linear {path}", **more)


def _norm(path: str, gamma: bool = True) -> Layer:
    return Layer(path, "norm", gamma=f"{path}.weight" if gamma else None, description="LayerNorm")


def _row(text: str, name: str) -> list[str]:
    """The cells of the row that names a block."""
    rows = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in text.splitlines()]
    (row,) = [cells for cells in rows if name in cells[:2]]
    return row


def test_a_row_has_number_name_m_branch_skip_path_and_what_follows_the_sum() -> None:
    block = ResidualBlock(
        "b",
        branch_layers=(_weight("f"), _norm("n"), Layer("b:relu", "activation", description="relu"), _weight("g")),
        skip_layers=(_weight("s"), _norm("d")),
        after_sum=(Layer("after", "activation", description="ReLU"),),
        identity_skip=False,
    )
    text = format_blocks(ResidualMap((block,), stem_layers=(_norm("0"),), head_layers=(_weight("h"),)))
    assert _row(text, "b") == [
        "1",
        "b",
        "2",
        "linear f → LayerNorm (γ last) → relu → linear g",
        "linear s → LayerNorm (γ down)",
        "ReLU",
    ]
    assert _row(text, "stem") == ["stem", "LayerNorm (γ stem)"]
    assert _row(text, "head") == ["head", "linear h"]


def test_gates_scale_and_dropout_are_shown_and_gates_are_in_parentheses() -> None:
    block = ResidualBlock(
        "b",
        branch_layers=(
            _weight("f"),
            _weight("g1", gating=True),
            _weight("g2", gating=True),
            _weight("h"),
            Layer("b:gamma", "scale", gamma="b.gamma", description="layer scale"),
            Layer("drop", "dropout", description="Dropout"),
        ),
        chain=2,
    )
    text = format_blocks(ResidualMap((block,)))
    assert _row(text, "b")[2:] == [
        "2",
        "linear f → (linear g1 → linear g2) → linear h → layer scale → Dropout",
        "identity",
    ]


def test_blocks_inside_a_branch_follow_indented_and_are_not_counted() -> None:
    layers = tuple(_weight(name) for name in "fghi")
    innermost = ResidualBlock("b.in.in", branch_layers=layers[1:2], identity_skip=False)
    inner = ResidualBlock("b.in", branch_layers=layers[1:3], inner=(innermost,))
    outer = ResidualBlock("b", branch_layers=layers, inner=(inner,))
    lines = format_map(ResidualMap((outer, ResidualBlock("c", branch_layers=(_weight("z"),))))).splitlines()
    assert lines[0] == "2 residual blocks"
    assert [line.split("  linear")[0].strip() for line in lines[-4:]] == [
        "1  b            4",
        "└ b.in       2",
        "└ b.in.in  1",
        "2  c            1",
    ]
    assert "no weights" in lines[-2]


def test_what_could_not_be_placed_is_listed() -> None:
    text = format_map(ResidualMap((), unresolved=(Unresolved("a.b", "the reason"), Unresolved("", "another"))))
    assert text.splitlines()[-3:] == ["unresolved", "  a.b: the reason", "  the network itself: another"]
    assert "unresolved" not in format_map(ResidualMap(()))


def test_the_middle_of_what_is_very_long_is_left_out() -> None:
    long = tuple(_weight(f"l{index}") for index in range(100))
    blocks = tuple(ResidualBlock(f"b{index}", branch_layers=long) for index in range(50))
    text = format_blocks(ResidualMap(blocks), width=4000)
    assert _row(text, "…") == ["…", "10 more blocks"]
    assert _row(text, "b19")[0] == "20"
    assert _row(text, "b30")[0] == "31"
    assert not any(f"b{index}" in text.split() for index in range(20, 30))
    assert "→ linear l19 → … 60 more layers … → linear l80 →" in text


def test_no_line_is_wider_than_asked_and_lines_break_behind_arrows_only() -> None:
    layers = (_norm("n"), *(_weight(f"l{index}") for index in range(30)))
    for width in range(60, 100):
        text = format_blocks(ResidualMap((ResidualBlock("b", branch_layers=layers),)), width=width)
        assert max(map(len, text.splitlines())) <= width
        assert "LayerNorm (γ other)" in text or "LayerNorm (γ last)" in text
        assert all(f"linear l{index}" in text for index in range(30))
        assert not any(line.strip().startswith("→") for line in text.splitlines())
