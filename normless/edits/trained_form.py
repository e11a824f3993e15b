"""The form of a scheme for trained networks: edits that keep their function, or nearly, and why others do not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from normless.edits import (
    attention,
    biases,
    branches,
    deepnorm,
    initialization,
    norm_variants,
    normalizer_free,
    norms,
)
from normless.edits.edit import Edit
from normless.edits.fold_norms import FoldNorms, GiveStatistics
from normless.edits.statistics import MatchStatistics, NoteStatistics
from normless.errors import UnsupportedEditError

# What keeps a function at every setting.
_KEEP = (
    *(biases.ChannelBiases, biases.ScalarBiases, biases.BiasAfterSum, norms.HeadDropout, norms.KeepLayerNorms),
    *(norm_variants.ReplaceNorms, norms.PointwiseNorms, normalizer_free.StandardizeWeights),
    *(FoldNorms, GiveStatistics, NoteStatistics, MatchStatistics),
)
# Rules for weights that are drawn at random.
_DROPPED = (initialization.KeepScale, branches.ResetBranchFactors, normalizer_free.PredictedVariance)
# What loses a function, and how; a function of the edit returns "" where it does not.
_LOSE: dict[type[Edit], str | Callable[[Any], str]] = {
    initialization.ZeroBranchEnds: "sets the last layer of every branch to zero",
    initialization.ZeroClassifier: "sets the classifier to zero",
    initialization.ZeroLastGamma: "sets γ of the last norm of every branch to zero",
    initialization.Reinitialize: "draws new weights",
    initialization.LSUV: "draws new weights",
    branches.BranchMultiplier: lambda own: _start("the multiplier of every branch", own.init),
    branches.LayerScale: lambda own: _start("a factor for every branch", own.init),
    branches.RescaleBranches: "rescales the weights of every branch",
    branches.RemoveBranches: "removes the branches",
    branches.ScaleSums: lambda own: "" if own.factor == 1 else f"multiplies every residual sum by {own.factor:.4g}",
    branches.ScaleBranches: "multiplies every branch by a constant",
    normalizer_free.StandardizeConvolutions: "standardizes weights without a gain that could keep their scale",
    norms.NormOnSkip: "adds a norm to every block",
    norms.OnlyFinalNorm: "adds a norm before the classifier",
    norms.OnlyTopNorm: "removes all norms but one",
    norms.LayerNormScaling: "divides the outputs of norms by √l",
    norms.BranchEndNorms: "adds a norm to every branch",
    attention.AddQKNorm: "normalizes queries and keys",
    attention.SoftCapLogits: "caps the logits of attention",
    deepnorm.DeepNorm: "scales skip paths and weights",
    deepnorm.TFixup: "rescales weights",
}


def _start(what: str, value: Any) -> str:
    if value == 1:
        return ""
    return f"starts {what} at zero" if value == 0 else f"starts {what} at {value}"


def losses(edits: Iterable[Edit]) -> list[str]:
    """Say what the edits of a scheme do to a trained network that changes its function and cannot be fitted."""
    words = []
    for own in edits:
        loses = _LOSE.get(type(own), "")
        words.append(loses if isinstance(loses, str) else loses(own))
    return [word for word in dict.fromkeys(words) if word]


def trained_form(text: str, edits: tuple[Edit, ...]) -> tuple[Edit, ...]:
    """Return the edits of a scheme for a trained network, between `NoteStatistics` and `MatchStatistics`.

    `RemoveNorms` becomes `FoldNorms`, and rules for weights that are drawn at random are left out. An edit of another
    package is kept as it is.

    Raises:
        UnsupportedEditError: an edit changes the function in a way that no fit makes good; the message says which
            schemes keep it.
    """
    lost = losses(edits)
    if lost:
        raise UnsupportedEditError(
            f"{text} does not keep the function of a trained network: it {', '.join(lost)}. These keep it: "
            "nl.convert_trained with skipinit, none or frozen_batch_norm exactly, and with group_norm, nf_resnet or "
            "dyt nearly; nl.fold and nl.freeze for batch norms; nl.remove_norms for layer norms."
        )
    kept = [
        FoldNorms() if isinstance(own, norms.RemoveNorms) else own for own in edits if not isinstance(own, _DROPPED)
    ]
    layers = any(isinstance(own, normalizer_free.StandardizeWeights) for own in kept)
    fixes = any(isinstance(own, FoldNorms) or getattr(own, "family", None) == "frozen" for own in kept)
    return (NoteStatistics(layers), *[GiveStatistics()] * fixes, *kept, MatchStatistics())
