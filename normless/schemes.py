"""Schemes: each method is a function that returns a tuple of edits, or a single edit, in an open registry.

Ablations are arguments: `fixup(biases=False, gain=0.1)` is Fixup without the biases of its third rule at a tenth of
the suggested scale. A further method is a function with the decorator `SCHEMES.register()`, here or in a file that is
named as `FILE.py:NAME`; a further edit is a class with the decorator `EDITS.register()`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from torch import nn

from normless import edits
from normless.affine._trained import trained_form
from normless.code_names import name_code
from normless.edits import EDITS, Edit
from normless.nn._initialization import Initialization
from normless.registry import Registry, check_arguments
from normless.spec import absolute, format_call, parse_call, split_terms

Edits = tuple[Edit, ...]
# Whether KeepScale comes first: True for fresh weights, `all` for trained weights too.
KeepingScale = bool | Literal["all"]
Level = Literal["inner", "outer"]
Norms = Literal["trunk", "all"]

SCHEMES = Registry[Callable[..., Any]]("scheme")
"""Schemes by name; `SCHEMES.register("mine")` decorates a function that returns edits, or one edit."""


@dataclass(frozen=True)
class Scheme:
    """A named tuple of edits.

    Attributes:
        text: its text, `fixup` or `skipinit(alpha=1)`.
        edits: its edits, in order.
        level: the blocks that the edits count and change if a global skip path spans several (SRResNet, a U-Net):
            `inner`, the spanned blocks, or `outer`, the block with the global skip path.
        norms: the normalizations that the edits remove or replace: those of the `trunk`, or `all`, including those
            that define an output or compare queries and keys (`ResidualMap.directions`).
        only: qualified names of modules or blocks; the scheme converts the parts at or under them, and its L counts
            the blocks there. The whole network if empty.
    """

    text: str
    edits: Edits
    level: Level = "inner"
    norms: Norms = "trunk"
    only: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The scheme's name, without its arguments and the edits that follow it."""
        return parse_call(split_terms(self.text)[0])[0]

    @property
    def as_called(self) -> str:
        """What a person wrote: the text, or the function that made the scheme of a trained network of it."""
        name, arguments = parse_call(split_terms(self.text)[0])
        return f"convert_trained by {arguments['scheme']}" if name == "trained" else self.text

    def extended(self, *edits: Edit) -> Scheme:
        """Return the scheme with further edits after its own."""
        texts = [self.text, *(edit.text for edit in edits)]
        return replace(self, text=" + ".join(texts), edits=(*self.edits, *edits))

    def within(self, *paths: str) -> Scheme:
        """Return the scheme for the parts at or under these qualified names of modules or blocks."""
        first, *further = split_terms(self.text)
        name, arguments = parse_call(first)
        return replace(self, text=" + ".join([format_call(name, arguments | {"only": paths}), *further]), only=paths)


def scheme(name: str | Callable[..., Edits] | Scheme, **arguments: Any) -> Scheme:
    """Make the scheme of a name and arguments, `scheme("fixup", gain=0.5)`.

    Args:
        name: a key of `SCHEMES`, `FILE.py:NAME`, `MODULE:NAME`, or a function that returns edits. Arguments may be in
            the text, `skipinit(alpha=1/sqrt(L))`, and further edits may follow it: `none + ZeroClassifier() +
            my_edits.py:MyEdit(x=1)`. A `Scheme` is returned unchanged.
        arguments: arguments of the scheme, which replace those in the text. Every scheme takes `level`, `norms` and
            `only`, see `Scheme`.

    Raises:
        ValueError: there is no such scheme or edit, or it does not take an argument or its value.
        TypeError: `name` is not a scheme, text or function, for example if example inputs replace the scheme.
    """
    if isinstance(name, Scheme):
        return name
    if not isinstance(name, str) and (isinstance(name, nn.Module) or not callable(name)):
        raise TypeError(
            f"Expected a scheme or its name, such as 'fixup', got an object of type {type(name).__name__}."
        )
    terms = split_terms(name) if isinstance(name, str) else [SCHEMES.text_of(name)]
    if not isinstance(name, str):
        name_code(*terms)
    first, *further = map(absolute, terms)
    own, written = parse_call(first)
    text = format_call(own, written | arguments) if arguments else first
    entry = SCHEMES.find(own) if isinstance(name, str) else name
    given = written | arguments
    level, only = given.pop("level", "inner"), given.pop("only", ())
    only = (only,) if isinstance(only, str) else only
    if not isinstance(only, (tuple, list)) or not all(isinstance(path, str) for path in only):
        raise ValueError(f"Expected qualified names of modules as only, such as 'backbone', got {only!r}.")
    if level not in get_args(Level):
        raise ValueError(f"The level of a scheme is inner or outer, not {level!r}.")
    norms = given.pop("norms", "trunk")
    if norms not in get_args(Norms):
        raise ValueError(f"The norms of a scheme are trunk or all, not {norms!r}.")
    check_arguments(f"scheme {own}", given, entry)
    made = entry(**given)
    edits = made.edits if isinstance(made, Scheme) else (made,) if isinstance(made, Edit) else made
    if not isinstance(edits, (tuple, list)) or not all(isinstance(edit, Edit) for edit in edits):
        raise ValueError(f"Expected a tuple of edits from the scheme {own}, got {made!r}.")
    for term in further:
        edits = (*edits, EDITS.make(term))
        if not isinstance(edits[-1], Edit):
            raise ValueError(f"Expected an edit from {term}, got {edits[-1]!r}.")
    unchanged = isinstance(name, str) and not arguments and [first, *further] == terms
    written_text = str(name).strip() if unchanged else " + ".join([text, *further])
    return Scheme(written_text, tuple(edits), level, norms, tuple(only))


# The scheme of a text, for schemes with an argument of that name.
_SCHEME = scheme
_ZERO_MULTIPLIER = edits.BranchMultiplier(0.0, trained=1.0)


@SCHEMES.register()
def as_written() -> Edits:
    """The unchanged network, with its norms."""
    return ()


@SCHEMES.register()
def batch_norm(initialization: Initialization | None = None, replace: bool = False) -> Edits:
    """Batch normalization (Ioffe & Szegedy 2015, algorithm 1), optionally with newly drawn weights.

    Other norms are kept; `replace` puts batch norms in place of those of images and vectors.
    """
    drawn: Edits = () if initialization is None else (edits.Reinitialize(initialization),)
    return (edits.ReplaceNorms("batch"), *drawn) if replace else drawn


@SCHEMES.register()
def ghost_batch_norm(size: int = 64) -> Edits:
    """Batch normalization over parts of a batch (Hoffer et al. 2017; De & Smith, appendix A)."""
    return (edits.ReplaceNorms("ghost", (("ghost_size", size),)),)


@SCHEMES.register()
def partial_batch_norm(mean: bool = True, variance: bool = True, gamma: bool = True, beta: bool = True) -> Edits:
    """Batch normalization with a subset of its parts (Bjorck et al., equation 1 and appendix H)."""
    parts = (("mean", mean), ("variance", variance), ("gamma", gamma), ("beta", beta))
    return (edits.ReplaceNorms("partial", parts),)


@SCHEMES.register()
def alternating_batch_norm() -> Edits:
    """Batch statistics of every other batch (Bjorck et al., section 3.4 and appendix J)."""
    return (edits.ReplaceNorms("alternating"),)


@SCHEMES.register()
def group_norm(groups: int = 32) -> Edits:
    """Group normalization (Wu & He 2018, equation 7) instead of batch, instance and layer norms of images."""
    return (edits.ReplaceNorms("group", (("groups", groups),)),)


@SCHEMES.register()
def instance_norm() -> Edits:
    """Instance normalization (Ulyanov et al. 2016, equation 2) instead of batch, group and layer norms of images."""
    return (edits.ReplaceNorms("instance"),)


@SCHEMES.register()
def rms_norm() -> Edits:
    """RMS normalization of features (Zhang & Sennrich 2019, equation 4) instead of layer norms; β is kept nowhere."""
    return (edits.ReplaceNorms("rms"),)


@SCHEMES.register()
def plain_batch_norm() -> Edits:
    """Torch's batch norms with the state of synchronized, frozen, ghost and other batch norms, which they replace.

    Frozen norms (torchvision, Detectron2) become trainable; other operations of a norm's module are kept. Sub-batch
    norms (SlowFast, AdvProp) become the norm that they apply in evaluation.
    """
    return (edits.ReplaceNorms("plain"),)


@SCHEMES.register()
def sync_batch_norm() -> Edits:
    """Batch statistics over all processes: torch's SyncBatchNorm (Peng et al. 2018, MegDet, section 3.2)."""
    return (edits.ReplaceNorms("synchronized"),)


@SCHEMES.register()
def frozen_batch_norm() -> Edits:
    """Batch norms with fixed statistics, γ and β, under the names of Detectron2 and torchvision."""
    return (edits.ReplaceNorms("frozen"),)


@SCHEMES.register()
def domain_batch_norm(domains: int = 2) -> Edits:
    """Statistics, γ and β for each domain (Chang et al. 2019, DSBN, section 3.1); see `normless.nn.using_domain`."""
    return (edits.ReplaceNorms("domain", (("domains", domains),)),)


@SCHEMES.register()
def split_batch_norm(parts: int = 2) -> Edits:
    """Statistics, γ and β for each part of a training batch (Xie et al. 2020, AdvProp); evaluation by the first."""
    return (edits.ReplaceNorms("split", (("parts", parts),)),)


# A method that is a single edit.
zero_gamma = SCHEMES.register("zero_gamma")(edits.ZeroLastGamma)
batch_norm_sqrt2 = SCHEMES.register("batch_norm_sqrt2")(edits.ScaleSums)
norm_on_skip = SCHEMES.register("norm_on_skip")(edits.NormOnSkip)
only_final_norm = SCHEMES.register("only_final_norm")(edits.OnlyFinalNorm)
only_top_norm = SCHEMES.register("only_top_norm")(edits.OnlyTopNorm)
layer_scale = SCHEMES.register("layer_scale")(edits.LayerScale)


@SCHEMES.register()
def none(keep_scale: KeepingScale = True) -> Edits:
    """No norms, with weights that keep their scale (He et al. 2015, section 2.2); see `KeepScale`."""
    if keep_scale is False:
        return (edits.RemoveNorms(),)
    return (edits.KeepScale("fresh" if keep_scale is True else keep_scale), edits.RemoveNorms())


@SCHEMES.register()
def xavier() -> Edits:
    """No norms, Xavier's normal weights (Glorot & Bengio 2010, equation 12; the baseline of Fixup's table 2)."""
    return (edits.RemoveNorms(), edits.Reinitialize("xavier"))


@SCHEMES.register()
def sqrt2(keep_scale: KeepingScale = True) -> Edits:
    """No norms, every residual sum divided by √2 (Fixup, section 4.1; De & Smith, table 3)."""
    return (*none(keep_scale), edits.ScaleSums())


@SCHEMES.register()
def lsuv() -> Edits:
    """No norms, layers of unit variance on a batch (Mishkin & Matas 2015, algorithm 1; Fixup, section 4.1)."""
    return (edits.RemoveNorms(), edits.LSUV())


@SCHEMES.register()
def skipinit(alpha: float | str | None = None, keep_scale: KeepingScale = True) -> Edits:
    """No norms, a multiplier α on every branch (De & Smith, SkipInit, appendix G): 0, a number or 1/sqrt(L)."""
    return (*none(keep_scale), _ZERO_MULTIPLIER if alpha is None else edits.BranchMultiplier(alpha))


@SCHEMES.register()
def zeroinit(
    multiplier: bool = True, biases: bool = True, dropout: float = 0.6, keep_scale: KeepingScale = True
) -> Edits:
    """Multipliers from zero, biases and dropout instead of norms (ZeroInit, section 4)."""
    chosen: Edits = none(keep_scale)
    if biases:
        chosen += (edits.ChannelBiases(),)
    if multiplier:
        chosen += (edits.BranchMultiplier(0.0),)
    return chosen if dropout == 0 else (*chosen, edits.HeadDropout(dropout))


@SCHEMES.register()
def zeroinit_v1(dropout: float = 0.6, keep_scale: KeepingScale = True) -> Edits:
    """ZeroInit with a bias after every sum, for ResNet-V1 (ZeroInit, section 5)."""
    return (*zeroinit(dropout=dropout, keep_scale=keep_scale), edits.BiasAfterSum())


@SCHEMES.register()
def fixup(
    gain: float = 1.0, rescale: bool = True, zero: bool = True, multiplier: bool = True, biases: bool = True
) -> Edits:
    """Scaled branches, zero ends, multipliers and biases (Zhang et al. 2019, section 3, rules 1 to 3, equation 5)."""
    chosen: Edits = (edits.RemoveNorms(), edits.ResetBranchFactors())
    if rescale:
        chosen += (edits.RescaleBranches(gain),)
    if zero:
        chosen += (edits.ZeroBranchEnds(), edits.ZeroClassifier())
    if multiplier:
        chosen += (edits.BranchMultiplier(1.0),)
    return (*chosen, edits.ScalarBiases()) if biases else chosen


@SCHEMES.register()
def remove_branches(keep_scale: KeepingScale = True) -> Edits:
    """No norms and no residual branches (Fixup, figure 4: `no residual`)."""
    return (*none(keep_scale), edits.RemoveBranches())


@SCHEMES.register()
def nf_resnet(alpha: float = 0.2, multiplier: bool = True, biases: bool = True) -> Edits:
    """Standardized weights and a predicted variance (Brock et al. 2021, equation 1 and section 3)."""
    chosen: Edits = (edits.RemoveNorms(),)
    if biases:
        chosen += (edits.ChannelBiases(),)
    chosen += (edits.StandardizeWeights(), edits.PredictedVariance(alpha))
    return (*chosen, _ZERO_MULTIPLIER) if multiplier else chosen


@SCHEMES.register()
def layer_norm(replace: bool = False) -> Edits:
    """Layer normalization (Ba et al. 2016): a transformer stays as it is (Vaswani et al. 2017, 3.1).

    `replace` puts layer norms in place of RMS, batch, instance and group norms, on images group norms with one group.
    """
    return (edits.ReplaceNorms("layer"),) if replace else (edits.KeepLayerNorms(),)


deepnorm = SCHEMES.register("deepnorm")(edits.DeepNorm)


@SCHEMES.register()
def t_fixup() -> Edits:
    """Transformers without norms or warm-up (Huang et al. 2020, T-Fixup, section 3.2)."""
    return (edits.RemoveNorms(), edits.ResetBranchFactors(), edits.TFixup())


@SCHEMES.register()
def rezero(keep_scale: KeepingScale = True) -> Edits:
    """No norms, a multiplier from zero on every branch (Bachlechner et al. 2020, ReZero, equation 2)."""
    return (*none(keep_scale), edits.BranchMultiplier(0.0))


@SCHEMES.register()
def dyt(
    alpha: float = 0.5,
    attention_alpha: float | None = None,
    final: Literal["replace", "keep"] = "replace",
) -> Edits:
    """γ·tanh(αx) + β instead of every norm (Zhu et al. 2025, Transformers without Normalization, section 4).

    Published for LLaMA as `attention_alpha` and `alpha`: 0.8 and 0.2 at width 4096, 0.6 and 0.15 at 5120, 0.2 and
    0.05 at 8192, with a learned factor after the embedding that is not part of this scheme (section 7.2).
    With `final=keep` the norms after the last block are kept: in language models nothing else sets the scale of the
    logits (docs/results/recent_methods.md).
    """
    return (edits.ResetBranchFactors(), edits.PointwiseNorms("tanh", alpha, attention_alpha, final=final))


@SCHEMES.register()
def derf(alpha: float = 0.5, shift: float = 0.0, final: Literal["replace", "keep"] = "replace") -> Edits:
    """γ·erf(αx + s) + β instead of every norm (Chen et al. 2025, Stronger Normalization-Free Transformers).

    `final` as for `dyt`.
    """
    return (edits.ResetBranchFactors(), edits.PointwiseNorms("erf", alpha, shift=shift, final=final))


layer_norm_scaling = SCHEMES.register("layer_norm_scaling")(edits.LayerNormScaling)
peri_norm = SCHEMES.register("peri_norm")(edits.BranchEndNorms)


@SCHEMES.register()
def weight_standardization(groups: int | None = 32) -> Edits:
    """Convolutions of standardized weights and group norms; for None the norms are kept (Qiao et al. 2019)."""
    return (*(group_norm(groups) if groups is not None else ()), edits.StandardizeConvolutions())


@SCHEMES.register()
def depth_mup(a: float = 1.0, optimizer: Literal["adam", "sgd"] = "adam") -> Edits:
    """Branches times a/√L, their rates times 1/√L, with `optimizer=sgd` 1 (Yang et al. 2023, Depth-µP, table 1)."""
    return (edits.ScaleBranches(a, 0.5, optimizer=optimizer),)


@SCHEMES.register()
def completep(alpha: float = 1.0, base_depth: float = 1.0) -> Edits:
    """Pre-norm transformers with AdamW settings that transfer across depths (Dey et al. 2025, CompleteP, table 1).

    With m = L / `base_depth`: branches × m^-α, rates of all parameters on them × m^(α-1), their ε × m^-α. Decay does
    not depend on depth. The table's rules for width (µP) are not applied.
    """
    return (edits.ScaleBranches(1.0, alpha, base_depth, epsilon=True),)


qk_norm = SCHEMES.register("qk_norm")(edits.AddQKNorm)
soft_capping = SCHEMES.register("soft_capping")(edits.SoftCapLogits)


@SCHEMES.register()
def trained(scheme: str = "none") -> Edits:
    """A scheme for a trained network, whose function it keeps, or nearly; see `convert_trained`.

    Batch norms that the scheme removes are folded into weights, and what it puts in place of norms is fitted on the
    example inputs to what they put out. The multipliers of `skipinit` and `nf_resnet` start at 1, unless stated.
    """
    return trained_form(scheme, _SCHEME(scheme).edits)
