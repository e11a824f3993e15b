"""What papers and definitions say of each scheme, whatever the network."""

from __future__ import annotations

from dataclasses import dataclass

import normless as nl
from normless.spec import parse_call


@dataclass(frozen=True)
class Scheme:
    """A scheme with its arguments.

    Attributes:
        text: as `nl.convert` takes it.
        bare: whether no norm of the trunk is left.
        shut: whether every block is its skip path at initialization.
        alone: whether each example is computed on its own in training, without statistics of the batch or dropout.
        adds: the scalar parameters that the network gains, by their names.
    """

    text: str
    bare: bool = False
    shut: bool = False
    alone: bool = False
    adds: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """The name without arguments."""
        return parse_call(self.text)[0]


WITH_NORMS = (
    "as_written", "batch_norm", "batch_norm(initialization='xavier')", "ghost_batch_norm",
    "ghost_batch_norm(size=3)", "partial_batch_norm", "partial_batch_norm(variance=False)",
    "partial_batch_norm(gamma=False, beta=False)", "partial_batch_norm(mean=False, variance=False)",
    "alternating_batch_norm", "plain_batch_norm", "frozen_batch_norm", "group_norm", "zero_gamma",
    "batch_norm(replace=True)", "instance_norm", "layer_norm(replace=True)", "rms_norm",
    "batch_norm_sqrt2", "norm_on_skip", "norm_on_skip(place=skip_path)", "only_final_norm", "only_top_norm",
    "layer_scale", "layer_norm", "deepnorm", "layer_norm_scaling", "peri_norm",
    "weight_standardization", "weight_standardization(groups=None)", "depth_mup", "completep", "qk_norm",
    "soft_capping",
)  # fmt: skip
WITHOUT_NORMS = (
    "none", "xavier", "sqrt2", "lsuv", "skipinit", "skipinit(alpha=1)", "zeroinit", "zeroinit(dropout=0)",
    "zeroinit(multiplier=False, dropout=0)", "zeroinit_v1", "zeroinit_v1(dropout=0)",
    "fixup", "fixup(gain=10)", "fixup(rescale=False)", "fixup(zero=False)", "fixup(multiplier=False)",
    "fixup(biases=False)", "remove_branches", "nf_resnet", "nf_resnet(multiplier=False)", "t_fixup", "rezero",
    "dyt", "derf",
)  # fmt: skip
# They train on a card, or with a domain chosen for each batch, or need a trained network.
ELSEWHERE = {"sync_batch_norm", "domain_batch_norm", "split_batch_norm", "trained"}
SHUT = {
    "zero_gamma", "skipinit", "zeroinit", "zeroinit(dropout=0)", "zeroinit_v1",
    "zeroinit_v1(dropout=0)", "fixup", "fixup(gain=10)", "fixup(rescale=False)", "fixup(multiplier=False)",
    "fixup(biases=False)", "remove_branches", "nf_resnet", "rezero",
}  # fmt: skip
# A norm of single examples, or none at all.
ALONE = {"partial_batch_norm(mean=False, variance=False)", "frozen_batch_norm", "group_norm"} | {
    text for text in WITHOUT_NORMS if "dropout=0)" in text or not text.startswith("zeroinit")
}
MULTIPLIER, BIASES = frozenset({"multiplier"}), frozenset({"input_bias", "output_bias"})
ADDS = {
    **dict.fromkeys(("skipinit", "skipinit(alpha=1)", "rezero"), MULTIPLIER),
    "nf_resnet": MULTIPLIER | {"gain"},
    **dict.fromkeys(("zeroinit", "zeroinit(dropout=0)"), MULTIPLIER | {"bias"}),
    **{text: MULTIPLIER | BIASES | {"bias"} for text in WITHOUT_NORMS if text.startswith(("fixup", "zeroinit_v1"))},
    "fixup(multiplier=False)": BIASES,
    "fixup(biases=False)": MULTIPLIER,
}


def _made(text: str) -> Scheme:
    return Scheme(
        text,
        bare=text in WITHOUT_NORMS,
        shut=text in SHUT,
        alone=text in ALONE,
        adds=ADDS.get(text, frozenset()),
    )


SCHEMES = {text: _made(text) for text in WITH_NORMS + WITHOUT_NORMS}
assert {scheme.name for scheme in SCHEMES.values()} == set(nl.SCHEMES) - ELSEWHERE
