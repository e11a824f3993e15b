"""The schemes and networks that the conformance suite crosses, and what it expects of each pair, as tables."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import normless as nl
from normless.models import dense, resnet_cifar, wide_resnet


@dataclass(frozen=True)
class Network:
    """A reference network, its number of residual blocks, the shape of one example, and its family."""

    build: Callable[[], nn.Module]
    blocks: int
    shape: tuple[int, ...]
    family: str

    def batch(self, size: int = 6) -> Tensor:
        return torch.randn(size, *self.shape)


NETWORKS = {
    "wide_16_1": Network(lambda: wide_resnet(16, 1), 6, (3, 8, 8), "wide"),
    "wide_10_2_gray": Network(lambda: wide_resnet(10, 2, in_channels=1), 3, (1, 8, 8), "wide"),
    "cifar_8": Network(lambda: resnet_cifar(8), 3, (3, 8, 8), "cifar"),
    "dense_relu_1": Network(lambda: dense(3, 40, in_features=12), 3, (12,), "dense"),
    "dense_relu_2": Network(lambda: dense(3, 40, in_features=12, branch_layers=2), 3, (12,), "dense"),
    "dense_linear_2": Network(lambda: dense(3, 40, in_features=12, relu=False, branch_layers=2), 3, (12,), "dense"),
}
CONVOLUTIONAL = [name for name, network in NETWORKS.items() if network.family != "dense"]
SMALLEST = ["wide_10_2_gray", "cifar_8", "dense_relu_2"]

WITH_NORMS = [
    "as_written", "batch_norm", "batch_norm(initialization='xavier')", "ghost_batch_norm",
    "ghost_batch_norm(size=3)", "partial_batch_norm", "partial_batch_norm(variance=False)",
    "partial_batch_norm(gamma=False, beta=False)", "partial_batch_norm(mean=False, variance=False)",
    "alternating_batch_norm", "plain_batch_norm", "frozen_batch_norm", "group_norm", "zero_gamma",
    "batch_norm_sqrt2", "norm_on_skip", "norm_on_skip(place=skip_path)", "only_final_norm", "only_top_norm",
    "layer_scale", "layer_norm", "deepnorm", "layer_norm_scaling", "peri_norm", "sandwich_norm",
    "weight_standardization", "weight_standardization(groups=None)", "depth_mup", "completep", "admin", "qk_norm",
    "soft_capping",
]  # fmt: skip
WITHOUT_NORMS = [
    "none", "xavier", "sqrt2", "lsuv", "skipinit", "skipinit(alpha=1)", "zeroinit", "zeroinit(dropout=0)",
    "zeroinit(multiplier=False, dropout=0)", "regularized_skipinit", "zeroinit_v1", "zeroinit_v1(dropout=0)",
    "fixup", "fixup(gain=10)", "fixup(rescale=False)", "fixup(zero=False)", "fixup(multiplier=False)",
    "fixup(biases=False)", "remove_branches", "nf_resnet", "nf_resnet(multiplier=False)", "t_fixup", "rezero",
    "dyt", "derf", "tailored_activations", "tailored_activations(eta=0.3, skip=0.9, biases=False)",
]  # fmt: skip
SCHEME_TEXTS = WITH_NORMS + WITHOUT_NORMS
# They train on a card, or with a domain chosen for each batch (tests/library/edits/test_norm_variants.py), or need a
# trained network (tests/library/trained).
ELSEWHERE = {"sync_batch_norm", "domain_batch_norm", "split_batch_norm", "trained"}

# Every block is its skip path at initialization.
IDENTITY_AT_START = {
    "zero_gamma", "skipinit", "zeroinit", "zeroinit(dropout=0)", "regularized_skipinit", "zeroinit_v1",
    "zeroinit_v1(dropout=0)", "fixup", "fixup(gain=10)", "fixup(rescale=False)", "fixup(multiplier=False)",
    "fixup(biases=False)", "remove_branches", "nf_resnet", "rezero",
}  # fmt: skip
# Each example is computed on its own in training mode: no statistics over the batch, no dropout.
INDEPENDENT = {
    "partial_batch_norm(mean=False, variance=False)",
    "group_norm",
    "weight_standardization",
    "frozen_batch_norm",
    *(text for text in WITHOUT_NORMS if "dropout=0)" in text or not re.match("zeroinit|regularized", text)),
}

_GAMMA = r"the last norm of its branch, blocks\.0\.\S+, is followed by blocks\.0\."
_ONE_LAYER = r"at blocks\.0: its branch has 1 weight layer and L\^\(-1/\(2m-2\)\) needs m ≥ 2"
_NO_ACTIVATION = "no residual sum is followed by an activation"
REFUSALS: dict[tuple[str, str], str] = {
    **{("zero_gamma", network): _GAMMA for network in NETWORKS if network != "cifar_8"},
    **{
        (scheme, network): _NO_ACTIVATION
        for scheme in ("zeroinit_v1", "zeroinit_v1(dropout=0)")
        for network in NETWORKS
        if network != "cifar_8"
    },
    **{
        (scheme, "dense_relu_1"): _ONE_LAYER
        for scheme in SCHEME_TEXTS
        if scheme.startswith("fixup") and scheme != "fixup(rescale=False)"
    },
    **{("layer_norm", network): "this scheme keeps transformers unchanged" for network in NETWORKS},
    **{("deepnorm", network): "DeepNorm is for transformers" for network in NETWORKS},
    **{("t_fixup", network): "transformers" for network in NETWORKS},
    **{("layer_norm_scaling", network): "not an attention, with which a transformer layer" for network in NETWORKS},
    **{
        (scheme, "cifar_8"): "its branch does not begin with a normalization"
        for scheme in ("peri_norm", "sandwich_norm")
    },
    **{
        (scheme, network): "it is for convolutional networks, and no branch has a convolution"
        for scheme in ("weight_standardization", "weight_standardization(groups=None)")
        for network in ("dense_relu_1", "dense_relu_2", "dense_linear_2")
    },
    **{("admin", network): "Admin is for transformers" for network in NETWORKS},
    **{
        (scheme, network): "it finds queries and keys on data|it has no attention"
        for scheme in ("qk_norm", "soft_capping")
        for network in NETWORKS
    },
    # ReLUs that read the residual sums, or the network's input.
    **{
        (text, network): rf"at {path}: it reads more than outputs of weight layers, which have mean zero"
        for text in ("tailored_activations", "tailored_activations(eta=0.3, skip=0.9, biases=False)")
        for network, path in (
            ("cifar_8", r"blocks\.0\.relu2"),
            ("dense_relu_1", r"stem\.relu1"),
            ("dense_relu_2", r"stem\.relu1"),
        )
    },
}

# Multipliers and scalar biases that a convolutional network of L blocks gains, by scheme; none where not listed.
# Fixup: four biases per block, one before the ReLU outside the blocks, one before the classifier.
SCALARS: dict[str, Callable[[int], tuple[int, int]]] = {
    **{text: lambda depth: (depth, 0) for text in SCHEME_TEXTS if text.startswith(("skipinit", "rezero", "regular"))},
    "nf_resnet": lambda depth: (depth, 0),
    "zeroinit": lambda depth: (depth, 0),
    "zeroinit(dropout=0)": lambda depth: (depth, 0),
    "zeroinit_v1": lambda depth: (depth, depth),
    "zeroinit_v1(dropout=0)": lambda depth: (depth, depth),
    **{text: lambda depth: (depth, 4 * depth + 2) for text in SCHEME_TEXTS if text.startswith("fixup")},
    "fixup(multiplier=False)": lambda depth: (0, 4 * depth + 2),
    "fixup(biases=False)": lambda depth: (depth, 0),
}

# (scheme, network, parameter), as patterns: parameters on which the loss does not depend.
_TAKEN_AWAY = [
    # A shift of a linear layer's input shifts its output, which the norm behind it takes away.
    (
        r"^(as_written|(plain_)?batch_norm|ghost|layer_scale|norm_on_skip|partial_batch_norm($|\(variance)|depth_mup|completep)",
        "dense_linear",
        r"^blocks\.\d\.branch\.norm1\.bias$",
    ),
    # A norm at the end of a branch takes away the shift of what it reads.
    ("^(peri|sandwich)", "dense_linear", r"^blocks\.\d\.branch\.norm\d\.bias$"),
    # A shift of the stream is taken away by the norms that read it, the last of them ahead of the classifier.
    ("^(peri|sandwich)", "wide", r"^blocks\.\d\.sum\.norm_branch\.bias$"),
    # A shift of the branch is taken away by the norm behind the sum.
    ("^norm_on_skip$", "cifar", r"^blocks\.\d\.norm2\.bias$"),
    ("^norm_on_skip$", "dense_linear", r"^blocks\.\d\.branch\.norm2\.bias$"),
    # A shift of the stream is taken away by the norms on both paths of the next block.
    ("^norm_on_skip", "dense_linear", r"^stem\.norm1\.bias$"),
    (r"^norm_on_skip\(", "dense_linear", r"^blocks\.[01]\.branch\.norm2\.bias$"),
    ("^norm_on_skip", "dense", r"^blocks\.[01]\.sum\.norm_(total|skip)\.bias$"),
    ("^norm_on_skip", "wide", r"^blocks\.\d\.sum\.norm_(total|skip)\.bias$"),
]


def gets_no_gradient(scheme: str, network: str, parameter: str) -> bool:
    """Whether theory says that the loss does not depend on the parameter, whatever the weights."""
    return any(
        re.search(one, scheme) and re.search(two, network) and re.search(three, parameter)
        for one, two, three in _TAKEN_AWAY
    )


PAIRS = [(scheme, network) for scheme in SCHEME_TEXTS for network in NETWORKS if (scheme, network) not in REFUSALS]
# Every scheme once, the smallest networks in turn: for what depends on the modules that a scheme makes.
_TAKEN = {
    scheme: [network for network in SMALLEST if (scheme, network) in PAIRS and scheme != "remove_branches"]
    for scheme in SCHEME_TEXTS
}
ONE_OF_EACH = [(scheme, taken[number % len(taken)]) for number, (scheme, taken) in enumerate(_TAKEN.items()) if taken]


def converted(scheme: str, network: str, *, dtype: torch.dtype = torch.float32) -> nn.Module:
    """The network converted by the scheme; weights depend on the random state."""
    model = NETWORKS[network].build().to(dtype)
    return nl.convert(model, scheme, NETWORKS[network].batch(16).to(dtype))


def perturbed(model: nn.Module, size: float = 0.1) -> nn.Module:
    """The model with noise on every parameter, so that no zero hides a mistake."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(size * torch.randn_like(parameter))
    return model
