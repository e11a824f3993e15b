"""Networks whose norms were removed, folded: equal outputs, no norm operator, exported, saved and loaded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from removed import (
    QUICK,
    TOKENS,
    ChannelNorm,
    LanguageModel,
    folded,
    next_token,
    relative,
    train,
    with_random_affines,
)
from torch import Tensor, nn
from torch.nn import functional as F
from written_networks import Written

import normless as nl
from normless.nn import FrozenAffine

# What computes statistics of its input.
STATISTICS = {"layer_norm", "rms_norm", "group_norm", "instance_norm", "var", "std", "rsqrt", "sqrt", "pow"}
STATISTICS |= {"square", "norm", "div", "reciprocal"}
OF_ONNX = {"LayerNormalization", "RMSNormalization", "InstanceNormalization", "Pow", "ReduceSumSquare"}
# The options of the language model, and how many norms become affine maps.
CASES: dict[str, tuple[dict[str, Any], int]] = {
    "pre-norm": ({}, 0),
    "tied": ({"tied": True}, 0),
    "QK-norm": ({"qk": True}, 0),
    "post-norm, tied": ({"post": True, "tied": True, "norm": nn.RMSNorm}, 3),
}


def removed(name: str) -> tuple[Any, Any, nl.affine.FoldReport]:
    """A language model in evaluation whose norms are all frozen, and folded."""
    torch.manual_seed(0)
    net = with_random_affines(LanguageModel(**CASES[name][0]))
    made, report, _ = folded(net, TOKENS, loss=next_token)
    return net, made, report


def operators(net: nn.Module, *inputs: Tensor) -> set[str]:
    """The names of the operators of an exported network."""
    nodes = torch.export.export(net, inputs).graph.nodes
    return {str(node.target).split(".")[1] for node in nodes if "aten" in str(node.target)}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", CASES)
def test_a_folded_network_computes_the_same_without_statistics(name: str, tmp_path: Path) -> None:
    net, made, report = removed(name)
    affine = CASES[name][1]
    assert report.counts["affine"] == affine, report
    assert report.counts["folded"] == {"QK-norm": 9}.get(name, 1 if affine else 5)
    other = (TOKENS[:2, :6] + 3) % 20
    with torch.no_grad():
        assert relative(made.train()(TOKENS), net(TOKENS)) < 1e-5
        assert relative(made.eval()(other), net(other)) < 1e-5
    found = operators(made, TOKENS)
    assert not found & STATISTICS
    assert affine or not any(isinstance(module, FrozenAffine) for module in made.modules())
    # What was folded twice is folded.
    assert relative(nl.fold(made, TOKENS)[0](TOKENS), net(TOKENS)) < 1e-5
    nl.save(made, tmp_path / "saved", example_inputs=TOKENS)
    loaded = nl.load(tmp_path / "saved", LanguageModel(**CASES[name][0]))
    assert torch.equal(loaded.eval()(TOKENS), made(TOKENS))
    if name != "tied":
        return
    # The embedding keeps its table when the head gets a weight of its own.
    assert net.head.weight is net.embedding.weight
    assert torch.equal(made.embedding.weight, net.embedding.weight)
    assert made.head.weight is not made.embedding.weight
    assert (net.head.bias is None, made.head.bias is None) == (True, False)
    onnxruntime = pytest.importorskip("onnxruntime")
    program = torch.onnx.export(made, (TOKENS,), dynamo=True, verbose=False)
    assert program is not None
    assert not {node.op_type for node in program.model.graph} & OF_ONNX
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    (output,) = session.run(None, {session.get_inputs()[0].name: TOKENS.numpy()})
    assert relative(torch.from_numpy(output), made(TOKENS)) < 1e-5


def test_the_matrices_of_a_folded_attention() -> None:
    """Each head's norm of queries comes after a layer that a layer norm comes before."""
    net, made, _ = removed("pre-norm")
    block, q = net.blocks[0], made.blocks[0].q
    centring = torch.eye(8) - torch.ones(8, 8) / 8
    scale = torch.diag(block.ln_1.weight / block.ln_1.constant[1])
    assert torch.allclose(q.weight, block.q.weight @ scale @ centring, atol=1e-5)
    assert torch.allclose(q.bias, block.q.bias + block.q.weight @ block.ln_1.bias, atol=1e-5)
    net, made, report = removed("QK-norm")
    places = {norm.path: (norm.side, norm.layers) for norm in report.norms}
    assert places["blocks.0.ln_1"] == ("after", ("blocks.0.k", "blocks.0.q", "blocks.0.v"))
    assert places["blocks.0.q_norm"] == ("before", ("blocks.0.q",))
    block, x = net.blocks[0], torch.randn(2, 3, 8)
    expected = block.q_norm(block.q(block.ln_1(x)).unflatten(-1, (2, -1)).transpose(1, 2))
    assert relative(made.blocks[0].q(x).unflatten(-1, (2, -1)).transpose(1, 2), expected) < 1e-5
    longer = torch.arange(51).reshape(3, 17) % 20
    assert relative(made(longer), net(longer)) < 1e-5


IMAGES, VECTORS = torch.randn(4, 3, 6, 6), torch.randn(3, 5, 8)


def residual(m: Any, x: Tensor) -> Any:
    x = F.relu(m.norm(m.conv(x)))
    y = m.norm2(m.conv2(F.relu(m.norm1(m.conv1(x)))))
    return m.last(F.relu(x + y))


def around(norm: nn.Module) -> Callable[[], nn.Module]:
    """A norm between convolutions."""
    parts = {"conv": nn.Conv2d(3, 8, 3), "norm": norm, "last": nn.Conv2d(8, 2, 1)}
    return lambda: Written(lambda m, x: m.last(m.norm(m.conv(x)).relu()), **parts)


def of_groups() -> nn.Module:
    convs = {name: nn.Conv2d(3 if name == "conv" else 8, 8, 3, padding=1) for name in ("conv", "conv1", "conv2")}
    norms = {name: nn.GroupNorm(2, 8) for name in ("norm", "norm1", "norm2")}
    return Written(residual, **convs, **norms, last=nn.Conv2d(8, 3, 1))


def padded(bias: bool) -> Callable[[], nn.Module]:
    """The subtraction of the mean commutes with zero padding; β does not."""
    parts = {"first": nn.Conv2d(3, 8, 1), "norm": ChannelNorm(8, bias=bias)}
    last = nn.Conv2d(8, 4, 3, padding=1)
    return lambda: Written(lambda m, x: m.last(m.norm(m.first(x).sin())), **parts, last=last)


def tokens(forward: Callable[[Any, Tensor], Any]) -> Callable[[], nn.Module]:
    """A layer norm of tokens that forward code reads."""
    return lambda: Written(forward, first=nn.Linear(8, 8), norm=nn.LayerNorm(8), last=nn.Linear(8, 2))


def attentive(m: Any, x: Tensor) -> Any:
    y = m.norm(x.sin())
    return m.last(m.attention(y, y, y, need_weights=False)[0])


def packed() -> nn.Module:
    attention = nn.MultiheadAttention(8, 2, bias=False, batch_first=True)
    return Written(attentive, norm=nn.LayerNorm(8), attention=attention, last=nn.Linear(8, 2))


def of_torch() -> nn.Module:
    """Its layers run their norms in evaluation too."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return Written(lambda m, x: m.last(m.encoder(x)), encoder=encoder, last=nn.Linear(8, 2))


# A network, its inputs, how many norms are folded, and how many become affine maps.
FATES: dict[str, tuple[Callable[[], nn.Module], Tensor, int, int]] = {
    "group norms": (of_groups, IMAGES, 3, 0),
    "instance norm with affine": (around(nn.InstanceNorm2d(8, affine=True)), IMAGES, 1, 0),
    "one group": (around(nn.GroupNorm(1, 8)), IMAGES, 1, 0),
    "channels, padded": (padded(True), IMAGES, 0, 1),
    "channels, padded, no β": (padded(False), IMAGES, 1, 0),
    "returned too": (tokens(lambda m, x: m.last(y := m.norm(x.sin())) + m.first(y).sum() + y.sum()), VECTORS, 0, 1),
    "activated": (tokens(lambda m, x: m.last(F.relu(m.norm(x.sin())))), VECTORS, 0, 1),
    "part of the features": (tokens(lambda m, x: m.last(F.pad(m.norm(x.sin())[..., :4], (0, 4)))), VECTORS, 0, 1),
    "mean of tokens": (tokens(lambda m, x: m.last(m.norm(x.sin()).mean(1))), VECTORS, 1, 0),
    "packed attention": (packed, VECTORS, 1, 0),
    "torch's encoder": (of_torch, VECTORS, 4, 0),
}


@pytest.mark.parametrize("name", FATES)
def test_what_becomes_of_a_removed_norm(name: str) -> None:
    build, x, into_layers, affine = FATES[name]
    made, report, removal = folded(with_random_affines(build()), x)
    assert report.counts == {"folded": into_layers, "affine": affine, "kept": 0}, report
    if name == "group norms":
        assert set(removal.places.values()) == {"other"}
        assert not operators(made, x) & (STATISTICS - {"div"})
    if name == "channels, padded":
        assert isinstance(made.norm, FrozenAffine)
        assert made.norm.centred
    if name == "packed attention":
        assert report.norms[0].layers == ("attention",)


IDS = torch.arange(30).reshape(3, 10) * 7 % 40
SMALL: dict[str, Any] = {"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 4, "intermediate_size": 32}
HEADS: dict[str, Any] = {"num_key_value_heads": 2, "head_dim": 8, "vocab_size": 40, "use_cache": False}
GPT: dict[str, Any] = {"n_layer": 2, "n_embd": 16, "n_head": 2, "vocab_size": 40, "n_positions": 16}
# The small vocabularies do not have these.
LANGUAGE: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
PRE = {"attention": 2, "feed_forward": 2, "final": 1}
NETWORKS: dict[str, tuple[dict[str, Any], dict[str, int], int]] = {
    "GPT2LMHeadModel": (GPT | LANGUAGE | {"use_cache": False}, PRE, 0),
    "LlamaForCausalLM": (SMALL | HEADS | LANGUAGE, PRE, 0),
    "BertForSequenceClassification": (SMALL | {"vocab_size": 40}, {"other": 1, "attention": 2, "feed_forward": 2}, 4),
    "ViTForImageClassification": (SMALL | {"image_size": 8, "patch_size": 4, "num_channels": 1}, PRE, 0),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_of_transformers(name: str) -> None:
    settings, places, affine = NETWORKS[name]
    kind: Any = getattr(pytest.importorskip("transformers"), name)
    torch.manual_seed(0)
    model = kind(kind.config_class(**settings)).eval()
    given = {"pixel_values": torch.randn(3, 1, 8, 8)} if name.startswith("ViT") else {"input_ids": IDS}

    def loss(net: Any) -> Tensor:
        logits = net(**given).logits
        return F.cross_entropy(logits.flatten(0, -2), torch.arange(logits.numel() // logits.shape[-1]) % 2)

    with torch.no_grad():
        expected, names = model(**given).logits, list(model.state_dict())
        removal = nl.remove_norms(model, example_inputs=given, **QUICK)
        assert Counter(removal.places.values()) == places
        assert relative(model(**given).logits, expected) < 1e-5
    assert list(model.state_dict()) == names
    train(model, removal, loss)
    made, report = nl.fold(removal.finish().eval(), example_inputs=given)
    assert report.counts == {"folded": sum(places.values()) - affine, "affine": affine, "kept": 0}, report
    with torch.no_grad():
        assert relative(made(**given).logits, model(**given).logits) < 1e-5
