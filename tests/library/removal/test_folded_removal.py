"""Networks whose norms were removed, folded: equal outputs, no norm operator, exported, saved and loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from removed import QUICK, TOKENS, LanguageModel, relative, train, with_random_affines
from torch import Tensor, nn
from torch.nn import functional as F
from written_networks import Written

import normless as nl
from normless.nn import FrozenAffine, FrozenLayerNorm

# What computes statistics of its input.
STATISTICS = {
    "layer_norm",
    "rms_norm",
    "group_norm",
    "instance_norm",
    "var",
    "std",
    "rsqrt",
    "sqrt",
    "pow",
    "square",
    "norm",
    "div",
    "reciprocal",
}
CASES: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "pre-norm": ({}, {"folded": 5, "affine": 0}),
    "tied": ({"tied": True}, {"folded": 5, "affine": 0}),
    "RMS norm": ({"norm": nn.RMSNorm}, {"folded": 5, "affine": 0}),
    "QK-norm": ({"qk": True}, {"folded": 9, "affine": 0}),
    "post-norm": ({"post": True}, {"folded": 1, "affine": 3}),
    "post-norm, tied": ({"post": True, "tied": True, "norm": nn.RMSNorm}, {"folded": 1, "affine": 3}),
}


FURTHER = {"RMS norm", "post-norm, tied"}


def removed(name: str) -> nn.Module:
    """A language model in evaluation whose norms are all frozen."""
    torch.manual_seed(0)
    net = with_random_affines(LanguageModel(**CASES[name][0]))
    removal = nl.remove_norms(net, TOKENS, **QUICK)
    train(net, removal)
    return removal.finish().eval()


def operators(net: nn.Module, *inputs: Tensor) -> set[str]:
    """The names of the operators of an exported network."""
    program = torch.export.export(net, inputs)
    return {
        str(node.target).split(".")[1]
        for node in program.graph.nodes
        if node.op == "call_function" and "aten" in str(node.target)
    }


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in FURTHER else ()) for name in CASES]
)
def test_a_folded_network_computes_the_same_without_statistics(name: str, tmp_path: Path) -> None:
    net = removed(name)
    folded, report = nl.fold(net, TOKENS)
    counts = {outcome: number for outcome, number in report.counts.items() if outcome != "kept"}
    assert counts == CASES[name][1], report
    with torch.no_grad():
        expected = net(TOKENS)
        assert relative(folded(TOKENS), expected) < 1e-5
        assert relative(folded.train()(TOKENS), expected) < 1e-5
        other = (TOKENS[:2, :6] + 3) % 20
        assert relative(folded.eval()(other), net(other)) < 1e-5
    found = operators(folded, TOKENS)
    assert not found & STATISTICS
    assert ("mean" in found) == (name == "post-norm")
    if counts["affine"] == 0:
        assert not any(isinstance(module, FrozenAffine) for module in folded.modules())
    # What was folded twice is folded.
    assert relative(nl.fold(folded, TOKENS)[0](TOKENS), expected) < 1e-5
    nl.save(folded, tmp_path / "saved", example_inputs=TOKENS)
    loaded = nl.load(tmp_path / "saved", LanguageModel(**CASES[name][0]))
    assert torch.equal(loaded.eval()(TOKENS), folded(TOKENS))


def test_an_embedding_keeps_its_table_when_the_head_gets_a_weight_of_its_own() -> None:
    net = removed("tied")
    assert net.head.weight is net.embedding.weight
    folded, _ = nl.fold(net, TOKENS)
    assert torch.equal(folded.embedding.weight, net.embedding.weight)
    assert folded.head.weight is not folded.embedding.weight
    assert net.head.bias is None
    assert folded.head.bias is not None


def test_the_matrices_of_a_folded_attention() -> None:
    net = removed("pre-norm")
    block, folded = net.blocks[0], nl.fold(net, TOKENS)[0].blocks[0]
    n = 8
    centring = torch.eye(n) - torch.ones(n, n) / n
    scale = torch.diag(block.ln_1.weight / block.ln_1.constant[1])
    assert torch.allclose(folded.q.weight, block.q.weight @ scale @ centring, atol=1e-5)
    assert torch.allclose(folded.q.bias, block.q.bias + block.q.weight @ block.ln_1.bias, atol=1e-5)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", ["tied", pytest.param("post-norm", marks=pytest.mark.slow)])
def test_an_exported_file_has_no_norm(name: str) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    folded, _ = nl.fold(removed(name), TOKENS)
    program = torch.onnx.export(folded, (TOKENS,), dynamo=True, verbose=False)
    kinds = {node.op_type for node in program.model.graph}
    assert not kinds & {"LayerNormalization", "RMSNormalization", "InstanceNormalization", "Pow", "ReduceSumSquare"}
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    (made,) = session.run(None, {session.get_inputs()[0].name: TOKENS.numpy()})
    assert relative(torch.from_numpy(made), folded(TOKENS)) < 1e-5


def test_group_norms_become_factors_of_convolutions() -> None:
    torch.manual_seed(0)
    convs = {f"conv{number}": nn.Conv2d(3 if number == 0 else 8, 8, 3, padding=1, bias=False) for number in range(3)}
    norms = {f"norm{number}": nn.GroupNorm(2, 8) for number in range(3)}

    def forward(net: Any, x: Tensor) -> Tensor:
        x = F.relu(net.norm0(net.conv0(x)))
        y = net.norm2(net.conv2(F.relu(net.norm1(net.conv1(x)))))
        return net.head(F.relu(x + y).mean((2, 3)))

    net = with_random_affines(Written(forward, **convs, **norms, head=nn.Linear(8, 3)))
    images = torch.randn(4, 3, 6, 6)
    removal = nl.remove_norms(net, images, **QUICK)
    assert set(removal.places.values()) == {"other"}
    train(net, removal, lambda net: F.cross_entropy(net(images), torch.tensor([0, 1, 2, 0])))
    expected = net.eval()(images)
    folded, report = nl.fold(removal.finish(), images)
    assert report.counts == {"folded": 3, "affine": 0, "kept": 0}
    assert relative(folded(images), expected) < 1e-5
    assert not operators(folded, images) & (STATISTICS - {"div"})


@pytest.mark.parametrize(
    "norm",
    [nn.GroupNorm(2, 8, affine=False), nn.InstanceNorm2d(8), nn.InstanceNorm2d(8, affine=True), nn.GroupNorm(1, 8)],
    ids=str,
)
def test_group_norms_with_and_without_affine_parameters(norm: nn.Module) -> None:
    torch.manual_seed(0)
    norm = with_random_affines(nn.Sequential(norm))[0]
    net = Written(
        lambda net, x: net.last(net.norm(net.conv(x)).relu()),
        conv=nn.Conv2d(3, 8, 3),
        norm=norm,
        last=nn.Conv2d(8, 2, 1),
    )
    images = torch.randn(4, 3, 6, 6)
    removal = nl.remove_norms(net, images, **QUICK)
    train(net, removal, lambda net: net(images).square().mean())
    expected = net.eval()(images)
    folded, report = nl.fold(removal.finish(), images)
    assert report.counts == {"folded": 1, "affine": 0, "kept": 0}
    assert relative(folded(images), expected) < 1e-5


class ChannelNorm(nn.LayerNorm):
    """A layer norm over the channels of images."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_norm_over_channels_before_a_convolution(padding: int, bias: bool) -> None:
    """The subtraction of the mean commutes with zero padding; β does not."""
    torch.manual_seed(0)
    norm = ChannelNorm(8, bias=bias)
    net = Written(
        lambda net, x: net.last(net.norm(net.first(x).sin())),
        first=nn.Conv2d(3, 8, 1),
        norm=with_random_affines(nn.Sequential(norm))[0],
        last=nn.Conv2d(8, 4, 3, padding=padding),
    )
    images = torch.randn(2, 3, 5, 5)
    removal = nl.remove_norms(net, images, **QUICK)
    train(net, removal, lambda net: net(images).square().mean())
    expected = net.eval()(images)
    folded, report = nl.fold(removal.finish(), images)
    assert relative(folded(images), expected) < 1e-5
    assert report.norms[0].outcome == ("affine" if padding and bias else "folded")
    if padding and bias:
        assert isinstance(folded.norm, FrozenLayerNorm)


def assert_folded_to(outcome: str, net: nn.Module) -> None:
    """Check what becomes of the one norm of a network that reads (B, T, 8), and that the outputs are the same."""
    x = torch.randn(3, 5, 8)
    removal = nl.remove_norms(net, x, **QUICK)
    train(net, removal, lambda net: net(x).square().mean())
    expected = net.eval()(x)
    folded, report = nl.fold(removal.finish(), x)
    assert [norm.outcome for norm in report.norms] == [outcome]
    assert relative(folded(x), expected) < 1e-5


@pytest.mark.parametrize(
    ("name", "forward"),
    [
        ("used twice", lambda net, x: net.last(net.norm(net.first(net.norm(x.sin()))))),
        ("returned too", lambda net, x: (lambda y: net.last(y) + net.first(y).sum() + y.sum())(net.norm(x.sin()))),
        ("its activation", lambda net, x: net.last(F.relu(net.norm(x.sin())))),
        ("its mean over features", lambda net, x: net.last(net.norm(x.sin()).mean(-1, keepdim=True) + x)),
        ("a part of its features", lambda net, x: net.last(F.pad(net.norm(x.sin())[..., :4], (0, 4)))),
    ],
)
def test_a_norm_that_no_layer_can_absorb_becomes_an_affine_map(name: str, forward: Any) -> None:
    torch.manual_seed(0)
    norm = with_random_affines(nn.Sequential(nn.LayerNorm(8)))[0]
    net = Written(forward, first=nn.Linear(8, 8), norm=norm, last=nn.Linear(8, 2))
    assert_folded_to("affine", net)


@pytest.mark.parametrize("pooled", ["mean", "first", "last two"])
def test_a_norm_before_a_pooling_over_tokens_is_folded(pooled: str) -> None:
    torch.manual_seed(0)
    pool = {"mean": lambda y: y.mean(1), "first": lambda y: y[:, 0], "last two": lambda y: y[:, -2:]}[pooled]
    norm = with_random_affines(nn.Sequential(nn.LayerNorm(8)))[0]
    net = Written(lambda net, x: net.last(pool(net.norm(x.sin()))), norm=norm, last=nn.Linear(8, 2))
    assert_folded_to("folded", net)


def test_torch_attention_absorbs_a_norm_into_its_packed_projection() -> None:
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(8, 2, bias=False, batch_first=True)
    norm = with_random_affines(nn.Sequential(nn.LayerNorm(8)))[0]

    def forward(net: Any, x: Tensor) -> Tensor:
        y = net.norm(x.sin())
        return net.last(net.attention(y, y, y, need_weights=False)[0])

    net = Written(forward, norm=norm, attention=attention, last=nn.Linear(8, 2))
    x = torch.randn(3, 5, 8)
    removal = nl.remove_norms(net, x, **QUICK)
    train(net, removal, lambda net: net(x).square().mean())
    with torch.no_grad():
        expected = net.eval()(x)
        folded, report = nl.fold(removal.finish(), x)
        assert report.norms[0].layers == ("attention",), report
        assert relative(folded(x), expected) < 1e-5


def test_a_layer_that_several_norms_are_folded_into() -> None:
    """Each head's norm of queries comes after a layer that a layer norm comes before."""
    net = removed("QK-norm")
    folded, report = nl.fold(net, TOKENS)
    places = {norm.path: (norm.side, norm.layers) for norm in report.norms}
    assert places["blocks.0.ln_1"] == ("after", ("blocks.0.k", "blocks.0.q", "blocks.0.v"))
    assert places["blocks.0.q_norm"] == ("before", ("blocks.0.q",))
    q, block = folded.blocks[0].q, net.blocks[0]
    x = torch.randn(2, 3, 8)
    expected = block.q_norm(block.q(block.ln_1(x)).unflatten(-1, (2, -1)).transpose(1, 2))
    made = q(x).unflatten(-1, (2, -1)).transpose(1, 2)
    assert relative(made, expected) < 1e-5
