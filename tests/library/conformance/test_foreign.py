"""Every scheme on our transformer and networks of other libraries: what holds of it, or why it has no place."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import pytest
import timm
import torch
import torchvision
import transformers as hf
from conformance_cases import INDEPENDENT, SCHEME_TEXTS, WITHOUT_NORMS
from torch import Tensor, nn

import normless as nl
from normless.edits import RescaleBranches
from normless.models import transformer

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


class Classifier(nn.Module):
    """torch's own encoder between an embedding and a classifier."""

    def __init__(self, norm_first: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, 0.1, batch_first=True, norm_first=norm_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first)
        self.classifier = nn.Linear(16, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.classifier(self.encoder(self.embedding(tokens)).mean(1))


class Functional(nn.Module):
    """Pre-activation blocks in the style of many scripts: functions, one shared ReLU, sums in place, at the root."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.Linear(8, 5)
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(4))
        self.convs = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1, bias=False) for _ in range(4))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in range(2):
            h = self.convs[2 * block](self.relu(self.norms[2 * block](x)))
            h = self.convs[2 * block + 1](torch.relu(self.norms[2 * block + 1](h)))
            h += x
            x = h
        return self.head(x.mean((2, 3)))


@dataclass(frozen=True)
class Foreign:
    """A network of someone else, a batch for it, and its number of blocks."""

    build: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Any, ...] | dict[str, Any]]
    blocks: int


def tokens(count: int = 7) -> Tensor:
    return torch.randint(2, 50, (4, count))


def bert() -> nn.Module:
    return hf.BertForSequenceClassification(hf.BertConfig(vocab_size=50, **SIZES))


def gpt2() -> nn.Module:
    config = hf.GPT2Config(
        vocab_size=50, n_embd=16, n_layer=2, n_head=2, n_positions=12, bos_token_id=0, eos_token_id=1
    )
    return hf.GPT2LMHeadModel(config)


def t5() -> nn.Module:
    config = hf.T5Config(vocab_size=50, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_decoder_layers=1, num_heads=2)
    return hf.T5ForConditionalGeneration(config)


def swin() -> nn.Module:
    sizes = {"embed_dim": 8, "depths": (2, 1), "num_heads": (2, 2), "window_size": 4}
    return timm.create_model(
        "swin_tiny_patch4_window7_224", img_size=32, patch_size=2, num_classes=10, drop_path_rate=0.0, **sizes
    )


FOREIGN = {
    "bert": Foreign(bert, lambda: {"input_ids": tokens()}, 4),
    "gpt2": Foreign(gpt2, lambda: {"input_ids": tokens(), "use_cache": False}, 4),
    "t5": Foreign(t5, lambda: {"input_ids": tokens(), "decoder_input_ids": tokens(5), "use_cache": False}, 2 * 2 + 3),
    "vit": Foreign(
        lambda: hf.ViTForImageClassification(hf.ViTConfig(image_size=16, patch_size=8, **SIZES)),
        lambda: {"pixel_values": torch.randn(4, 3, 16, 16)},
        4,
    ),
    "timm vit": Foreign(
        lambda: timm.create_model("test_vit", num_classes=10, img_size=32), lambda: (torch.randn(4, 3, 32, 32),), 12
    ),
    "timm swin": Foreign(swin, lambda: (torch.randn(4, 3, 32, 32),), 6),
    "torch post-norm": Foreign(lambda: Classifier(norm_first=False), lambda: (tokens(),), 4),
    "torch pre-norm": Foreign(lambda: Classifier(norm_first=True), lambda: (tokens(),), 4),
}
for norm in ("pre", "post"):
    FOREIGN[f"our {norm}-norm"] = Foreign(
        lambda norm=norm: transformer(50, 2, 16, 2, 24, norm=norm, dropout=0.1, decoder_layers=1),
        lambda: (tokens(), tokens(5)),
        2 * 2 + 3,
    )
POST_NORM = {"bert", "torch post-norm", "our post-norm"}
TRANSFORMERS = [*FOREIGN]
CONVOLUTIONAL = {
    "resnet18": Foreign(lambda: torchvision.models.resnet18(num_classes=10), lambda: (torch.randn(4, 3, 32, 32),), 8),
    "functional": Foreign(Functional, lambda: (torch.randn(4, 3, 8, 8),), 2),
}
FOREIGN |= CONVOLUTIONAL

_NOT_BATCH = "not a batch norm of vectors, images or volumes"
_CHANNELS = "does not run|no batch norm is known for the output of a Conv1D"
_NOT_STANDARDIZED = "does not end in a weight layer|lies between blocks|not in(to)? a (MultiheadA|ScalarTransposedL)"
_SEVERAL = "not a layer with one weight and one output"
REFUSALS: dict[tuple[str, str], str] = {
    **{
        (f"{one}_norm", name): _NOT_BATCH
        for name in TRANSFORMERS
        for one in ("ghost_batch", "partial_batch", "group")
    },
    **{
        (f"{one}_batch_norm", name): _NOT_BATCH for name in TRANSFORMERS for one in ("alternating", "plain", "frozen")
    },
    **{
        ("zero_gamma", name): "its branch has no norm"
        if name in POST_NORM
        else "an operation that is not a layer follows"
        for name in TRANSFORMERS
    },
    # Batch norm takes the channels from the second axis, where these have their tokens.
    **{("norm_on_skip", name): _CHANNELS for name in TRANSFORMERS},
    **{("only_final_norm", name): _CHANNELS for name in ("gpt2", "t5", "our pre-norm", "our post-norm")},
    **{("only_top_norm", name): _CHANNELS for name in (*POST_NORM, "torch pre-norm")},
    **{("zeroinit_v1", name): "no residual sum is followed by an activation" for name in TRANSFORMERS},
    # Attention divides its projection into heads, or has weights and no layers.
    **{
        ("remove_branches", name): "does not run|it is not a module of its own"
        for name in TRANSFORMERS
        if name != "vit"
    },
    **{("nf_resnet", name): _NOT_STANDARDIZED for name in TRANSFORMERS},
    **{
        ("deepnorm", name): "DeepNorm is for transformers whose normalizations follow"
        for name in TRANSFORMERS
        if name not in POST_NORM
    },
    **{("layer_scale", name): "does not end in a layer that takes a factor per channel" for name in TRANSFORMERS},
    **{("lsuv", name): _SEVERAL for name in ("torch post-norm", "torch pre-norm")},
}
REFUSALS |= {("weight_standardization", name): _NOT_BATCH for name in TRANSFORMERS}
REFUSALS |= {
    (scheme, name): "its branch does not begin with a normalization"
    for scheme in ("layer_norm_scaling", "peri_norm", "sandwich_norm")
    for name in POST_NORM
}
REFUSALS |= {
    ("tailored_activations", f"our {norm}-norm"): "the correlation after its attention is not known"
    for norm in ("pre", "post")
}
REFUSALS |= {
    (scheme, name): reason
    for name in CONVOLUTIONAL
    for scheme, reason in {
        "layer_norm": "this scheme keeps transformers unchanged", "deepnorm": "DeepNorm is for transformers",
        "admin": "Admin is for transformers", "qk_norm": "it has no attention", "soft_capping": "it has no attention",
        "t_fixup": "transformers have none on a branch", "layer_norm_scaling": "not an attention, with which",
    }.items()
}  # fmt: skip
REFUSALS |= {("tailored_activations", name): "tailored_activations is not possible" for name in TRANSFORMERS}
REFUSALS |= {(scheme, "resnet18"): "does not begin with a normalization" for scheme in ("peri_norm", "sandwich_norm")}
REFUSALS |= {
    ("zero_gamma", "functional"): "at γ = 0 the activation between them passes no gradient",
    ("zeroinit_v1", "functional"): "no residual sum is followed by an activation",
    ("tailored_activations", "resnet18"): "it reads more than outputs of weight layers",
}
for fits in ("bert", "gpt2", "t5", "vit", "timm vit", "our pre-norm", "our post-norm"):
    del REFUSALS["layer_scale", fits]
for fits in ("bert", "our pre-norm", "our post-norm"):
    del REFUSALS["remove_branches", fits]
REFUSALS |= {("admin", name): "Admin is for transformers" for name in TRANSFORMERS if name not in POST_NORM}
# Their attention is a function that forward code chooses by name while it runs.
REFUSALS |= {
    (scheme, name): "an operator in the forward code"
    for scheme in ("qk_norm", "soft_capping")
    for name in ("bert", "gpt2", "t5", "vit")
}
# The class token alone is read, and without attention no patch reaches it.
REFUSALS["remove_branches", "vit"] = "no longer have any gradient"

WITH_MULTIPLIERS = {"skipinit", "zeroinit", "zeroinit_v1", "regularized_skipinit", "fixup", "rezero"}
QUICK = {("fixup", name) for name in FOREIGN} | {("skipinit", "bert"), ("t_fixup", "gpt2"), ("deepnorm", "bert")}
QUICK |= {("none", "torch post-norm"), ("sqrt2", "torch pre-norm"), ("xavier", "torch post-norm")}
QUICK |= {("dyt", "gpt2"), ("derf", "timm vit"), ("layer_norm_scaling", "t5"), ("peri_norm", "torch pre-norm")}
QUICK |= {("zero_gamma", "t5"), ("group_norm", "timm swin"), ("skipinit", "resnet18"), ("group_norm", "functional")}
OURS = ("rezero", "t_fixup", "deepnorm", "dyt", "qk_norm", "norm_on_skip", "only_top_norm", "sandwich_norm", "admin")
QUICK |= {(scheme, f"our {norm}-norm") for scheme in OURS for norm in ("pre", "post")}
PAIRS = [
    pytest.param(scheme, network, marks=() if (scheme, network) in QUICK else pytest.mark.slow)
    for scheme in SCHEME_TEXTS
    if "(" not in scheme
    for network in FOREIGN
]


def run(net: nn.Module, inputs: tuple[Any, ...] | dict[str, Any]) -> Tensor:
    """The logits, whatever they come in."""
    output = net(**inputs) if isinstance(inputs, dict) else net(*inputs)
    return output if isinstance(output, Tensor) else output.logits


def made(scheme: str, network: str) -> tuple[nn.Module, nn.Module, tuple[Any, ...] | dict[str, Any]]:
    """The network, its conversion, and inputs."""
    torch.manual_seed(0)
    model, inputs = FOREIGN[network].build().train(), FOREIGN[network].inputs()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    net = nl.convert(model, scheme, **inputs) if isinstance(inputs, dict) else nl.convert(model, scheme, *inputs)
    assert before.keys() == model.state_dict().keys()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    return model, net, inputs


def mapped(net: nn.Module, inputs: tuple[Any, ...] | dict[str, Any]) -> nl.ResidualMap:
    return nl.residual_map(net, **inputs) if isinstance(inputs, dict) else nl.residual_map(net, *inputs)


@pytest.mark.parametrize(("scheme", "network"), PAIRS)
def test_a_scheme_holds_or_says_why_not(scheme: str, network: str) -> None:
    if (scheme, network) in REFUSALS:
        with pytest.raises(nl.UnsupportedEditError, match=REFUSALS[scheme, network]):
            made(scheme, network)
        return
    model, net, inputs = made(scheme, network)
    assert isinstance(net, type(model))
    _learns(net, inputs)
    _is_well_in_evaluation(net, inputs)
    if scheme in WITHOUT_NORMS:
        assert not [name for name, one in net.named_modules() if isinstance(one, (nn.LayerNorm, nn.BatchNorm2d))]
    if scheme in INDEPENDENT and network in CONVOLUTIONAL and scheme in WITHOUT_NORMS:
        assert not nl.mixes_examples(net.train(), *inputs)
    if scheme in WITH_MULTIPLIERS:
        assert sum(name.endswith("multiplier") for name, _ in net.named_parameters()) == FOREIGN[network].blocks


def _learns(net: nn.Module, inputs: tuple[Any, ...] | dict[str, Any]) -> None:
    """Three steps: every loss finite, and a finite gradient for all but what a forward pass does not read."""
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    for _ in range(3):
        optimizer.zero_grad()
        logits = run(net, inputs).flatten(0, -2)
        loss = nn.functional.cross_entropy(logits, torch.arange(len(logits)) % logits.shape[1])
        loss.backward()
        optimizer.step()
        assert math.isfinite(loss.item())
    idle = [name for name, one in net.named_parameters() if one.grad is None]
    assert idle == []
    assert all(one.grad.isfinite().all() for one in net.parameters())


def _is_well_in_evaluation(net: nn.Module, inputs: tuple[Any, ...] | dict[str, Any]) -> None:
    """Without gradients, where fused paths may be taken, the output is that with them; a copy computes the same."""
    net.eval()
    expected = run(net, inputs)
    with torch.no_grad():
        torch.testing.assert_close(run(net, inputs), expected, rtol=1e-4, atol=1e-5)
        assert torch.equal(run(deepcopy(net), inputs), run(net, inputs))


@pytest.mark.parametrize("network", FOREIGN)
def test_fixup_blocks_start_as_their_skip_paths(network: str) -> None:
    """With every branch at zero, no weight inside one has a gradient but the last, its bias and its multiplier."""
    _, net, inputs = made("fixup", network)
    found = mapped(net, inputs)
    assert found.depth == FOREIGN[network].blocks
    assert found.norms == {}
    for block in found.blocks:
        last = [layer for layer in block.branch_layers if layer.kind == "weight" and not layer.gating][-1]
        weight = max(
            (net.get_parameter(name) for name in last.parameters if name.endswith("weight")), key=Tensor.numel
        )
        assert not weight.any(), block.name
    run(net, inputs).square().mean().backward()
    inside = {name for block in found.blocks for layer in block.branch_layers for name in layer.parameters}
    last_layers = {
        [layer for layer in block.branch_layers if layer.kind == "weight" and not layer.gating][-1].path
        for block in found.blocks
    }
    for name in inside:
        one = dict(net.named_parameters()).get(name)
        if one is not None and name.rpartition(".")[0] not in last_layers and one.grad is not None:
            assert not one.grad.any(), name


@pytest.mark.parametrize("network", ["timm vit", "torch pre-norm", "gpt2", "bert"])
def test_fixup_leaves_queries_and_keys_and_tied_tables_alone(network: str) -> None:
    model, net, inputs = made("fixup", network)
    factor = FOREIGN[network].blocks ** -0.5
    before, after = dict(model.named_parameters()), dict(net.named_parameters())
    checked = 0
    for name, one in before.items():
        packed = re.search(r"(qkv\.weight|in_proj_weight|c_attn\.weight)$", name)
        if packed:
            axis = 1 if "c_attn" in name else 0
            for index, (old, new) in enumerate(zip(one.chunk(3, axis), after[name].chunk(3, axis), strict=True)):
                torch.testing.assert_close(new, old * factor if index == 2 else old)
            checked += 1
        if name.endswith(("query.weight", "key.weight", "wte.weight")):
            assert torch.equal(after[name], one)
            checked += 1
    assert checked >= 2
    assert torch.isfinite(run(net, inputs)).all()


def test_a_lifted_block_takes_other_keywords_than_it_was_converted_with() -> None:
    """GPT-2's blocks take what they pass on as keywords without a name, caches and masks among them."""
    model, net, inputs = made("sqrt2", "gpt2")
    assert isinstance(inputs, dict)
    net.eval()
    expected = net(**inputs).logits
    places = torch.arange(1, 8).expand(4, 7)
    assert not torch.allclose(net(**inputs, position_ids=places).logits, expected)
    cached = net(inputs["input_ids"][:, :-1], use_cache=True)
    last = net(inputs["input_ids"][:, -1:], past_key_values=cached.past_key_values, use_cache=True)
    torch.testing.assert_close(last.logits[:, -1], expected[:, -1], atol=1e-5, rtol=1e-4)
    padded = torch.cat([inputs["input_ids"], torch.zeros(4, 2, dtype=torch.long)], 1)
    mask = torch.cat([torch.ones(4, 7), torch.zeros(4, 2)], 1).long()
    torch.testing.assert_close(net(padded, attention_mask=mask).logits[:, :7], expected, atol=1e-5, rtol=1e-4)
    assert mapped(net, inputs).depth == mapped(model, inputs).depth


def test_a_cross_attention_packs_keys_and_values_alone() -> None:
    sizes = {"vocab_size": 50, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 12}
    config = hf.GPT2Config(add_cross_attention=True, bos_token_id=0, eos_token_id=1, **sizes)
    model = hf.GPT2LMHeadModel(config)
    inputs = {"input_ids": tokens(), "encoder_hidden_states": torch.randn(4, 3, 16), "use_cache": False}
    net = nl.convert(model, nl.Scheme("rescaled", (RescaleBranches(),)), **inputs)
    old, new = (one.transformer.h[0].crossattention for one in (model, net))
    key, value = new.c_attn.weight.chunk(2, 1)
    assert torch.equal(key, old.c_attn.weight[:, :16])
    torch.testing.assert_close(value, old.c_attn.weight[:, 16:] * 3**-0.5)
    assert torch.equal(new.q_attn.weight, old.q_attn.weight)
