"""The schemes: every method of the papers as a named tuple of edits, in one table.

Ablations are arguments: `fixup(biases=False, gain=0.1)` is Fixup without its third rule's biases at a tenth of
the suggested scale. Next year's paper is one function here and, if it needs a new kind of edit, one file in
`edits/`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from normless.edits import (
    LSUV,
    BiasAfterSum,
    BranchMultiplier,
    ChannelBiases,
    DeepNorm,
    Edit,
    HeadDropout,
    KeepLayerNorms,
    KeepScale,
    LayerScale,
    NormOnSkip,
    OnlyFinalNorm,
    OnlyTopNorm,
    PredictedVariance,
    Reinitialize,
    RemoveBranches,
    RemoveNorms,
    ReplaceNorms,
    RescaleBranches,
    ScalarBiases,
    ScaleSums,
    StandardizeWeights,
    TFixup,
    ZeroBranchEnds,
    ZeroClassifier,
    ZeroLastGamma,
)
from normless.initialization import Kind
from normless.spec import parse_call, split_terms

Edits = tuple[Edit, ...]
# Whether KeepScale comes first: True for fresh weights, `all` for trained ones too.
Keeping = bool | Literal["all"]
Made = TypeVar("Made")


@dataclass(frozen=True)
class Scheme:
    """A named tuple of edits and nothing more.

    Attributes:
        text: how it is written, `fixup` or `skipinit(alpha=1)`.
        edits: what it does, in order.
    """

    text: str
    edits: Edits

    def extended(self, *edits: Edit) -> Scheme:
        """The same scheme with further edits behind its own."""
        return replace(self, text=" + ".join([self.text, *map(repr, edits)]), edits=(*self.edits, *edits))


def _batch_norm(initialization: Kind | None = None) -> Edits:
    return () if initialization is None else (Reinitialize(initialization),)


def _ghost_batch_norm(size: int = 64) -> Edits:
    return (ReplaceNorms("ghost", (("ghost_size", size),)),)


def _partial_batch_norm(mean: bool = True, variance: bool = True, gamma: bool = True, beta: bool = True) -> Edits:
    parts = (("mean", mean), ("variance", variance), ("gamma", gamma), ("beta", beta))
    return (ReplaceNorms("partial", parts),)


def _group_norm(groups: int = 32) -> Edits:
    return (ReplaceNorms("group", (("groups", groups),)),)


def _without_norms(keep_scale: Keeping = True) -> Edits:
    """No norms; fresh weights get the scale that they gave, trained ones too where `keep_scale` is `all`."""
    if keep_scale is False:
        return (RemoveNorms(),)
    return (KeepScale("fresh" if keep_scale is True else keep_scale), RemoveNorms())


def _sqrt2(keep_scale: Keeping = True) -> Edits:
    return (*_without_norms(keep_scale), ScaleSums())


def _skipinit(alpha: float | str = 0.0, keep_scale: Keeping = True) -> Edits:
    return (*_without_norms(keep_scale), BranchMultiplier(alpha))


def _rezero(keep_scale: Keeping = True) -> Edits:
    return (*_without_norms(keep_scale), BranchMultiplier(0.0))


def _remove_branches(keep_scale: Keeping = True) -> Edits:
    return (*_without_norms(keep_scale), RemoveBranches())


def _zeroinit(
    multiplier: bool = True, biases: bool = True, dropout: float = 0.6, keep_scale: Keeping = True
) -> Edits:
    edits = _without_norms(keep_scale)
    if biases:
        edits += (ChannelBiases(),)
    if multiplier:
        edits += (BranchMultiplier(0.0),)
    return edits if dropout == 0 else (*edits, HeadDropout(dropout))


def _zeroinit_v1(dropout: float = 0.6, keep_scale: Keeping = True) -> Edits:
    return (*_zeroinit(dropout=dropout, keep_scale=keep_scale), BiasAfterSum())


def _fixup(
    gain: float = 1.0,
    rescale: bool = True,
    zero: bool = True,
    multiplier: bool = True,
    biases: bool = True,
) -> Edits:
    edits: Edits = (RemoveNorms(),)
    if rescale:
        edits += (RescaleBranches(gain),)
    if zero:
        edits += (ZeroBranchEnds(), ZeroClassifier())
    if multiplier:
        edits += (BranchMultiplier(1.0),)
    return (*edits, ScalarBiases()) if biases else edits


def _nf_resnet(alpha: float = 0.2, multiplier: bool = True, biases: bool = True) -> Edits:
    edits: Edits = (RemoveNorms(),)
    if biases:
        edits += (ChannelBiases(),)
    edits += (StandardizeWeights(), PredictedVariance(alpha))
    return (*edits, BranchMultiplier(0.0)) if multiplier else edits


def _norm_on_skip(place: Literal["after_sum", "skip_path"] = "after_sum") -> Edits:
    return (NormOnSkip(place),)


def _layer_scale(init: float = 1e-4) -> Edits:
    return (LayerScale(init),)


SCHEMES: Mapping[str, Callable[..., Edits]] = {
    # With normalization.
    "as_written": lambda: (),
    "batch_norm": _batch_norm,
    "ghost_batch_norm": _ghost_batch_norm,
    "partial_batch_norm": _partial_batch_norm,
    "alternating_batch_norm": lambda: (ReplaceNorms("alternating"),),
    "group_norm": _group_norm,
    "zero_gamma": lambda: (ZeroLastGamma(),),
    "batch_norm_sqrt2": lambda: (ScaleSums(),),
    "norm_on_skip": _norm_on_skip,
    "only_final_norm": lambda: (OnlyFinalNorm(),),
    "only_top_norm": lambda: (OnlyTopNorm(),),
    "layer_scale": _layer_scale,
    # Without.
    "none": _without_norms,
    "xavier": lambda: (RemoveNorms(), Reinitialize("xavier")),
    "sqrt2": _sqrt2,
    "lsuv": lambda: (RemoveNorms(), LSUV()),
    "skipinit": _skipinit,
    "zeroinit": _zeroinit,
    "regularized_skipinit": _zeroinit,
    "zeroinit_v1": _zeroinit_v1,
    "fixup": _fixup,
    "remove_branches": _remove_branches,
    "nf_resnet": _nf_resnet,
    # Of transformers: the first two keep their norms, the second needs post-norms, the third has none.
    "layer_norm": lambda: (KeepLayerNorms(),),
    "deepnorm": lambda: (DeepNorm(),),
    "t_fixup": lambda: (RemoveNorms(), TFixup()),
    "rezero": _rezero,
}


EDITS: Mapping[str, type[Edit]] = {kind.__name__: kind for kind in Edit.__subclasses__()}


def parse_scheme(text: str) -> Scheme:
    """The scheme that a text such as `fixup`, `skipinit(alpha=1/sqrt(L))` or `zeroinit(dropout=0.2)` names.

    Further edits may follow, as in `none + ZeroClassifier() + HeadDropout(probability=0.2)`: it is how the text of
    an extended scheme reads.

    Raises:
        ValueError: the name is not in `SCHEMES`, or the scheme or edit does not take an argument or its value; says
            what there is.
    """
    first, *further = split_terms(text)
    return Scheme(text.strip(), (*_named_edits(first), *map(_edit, further)))


def _named_edits(text: str) -> Edits:
    """The edits of a scheme in the table."""
    return _called(text, SCHEMES, f"There is no scheme {{!r}}; the schemes are {', '.join(SCHEMES)}.")


def _edit(text: str) -> Edit:
    """One edit by its class and arguments, as its `repr` reads."""
    return _called(text, EDITS, f"There is no edit {{!r}} to follow a scheme; the edits are {', '.join(EDITS)}.")


def _called(text: str, table: Mapping[str, Callable[..., Made]], unknown: str) -> Made:
    """What the function or class of a name makes of the arguments in a text."""
    name, arguments = parse_call(text)
    if name not in table:
        raise ValueError(unknown.format(name))
    what = "scheme" if name in SCHEMES else "edit"
    _check(f"{what} {name}", arguments, table[name], inspect.signature(table[name]).parameters)
    return table[name](**arguments)


def _check(what: str, arguments: Mapping[str, Any], made: Any, known: Mapping[str, Any]) -> None:
    """Refuse arguments that something does not take, or whose value is of another kind than it says."""
    unknown = [argument for argument in arguments if argument not in known]
    if unknown:
        takes = f"takes {', '.join(known)}" if known else "takes no arguments"
        raise ValueError(f"The {what} {takes}; it does not take {', '.join(unknown)}.")
    missing = [
        name for name, one in known.items() if one.default is inspect.Parameter.empty and name not in arguments
    ]
    if missing:
        raise ValueError(f"The {what} needs {', '.join(missing)}, as in {what.split()[1]}({missing[0]}=…).")
    kinds = get_type_hints(made)
    for argument, value in arguments.items():
        if not _fits(value, kinds[argument]):
            raise ValueError(f"In the {what}, {argument} is {_in_words(kinds[argument])}, not {value!r}.")


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value read from text is of the kind a parameter is annotated with; True is no number."""
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if get_origin(kind) in (Union, UnionType):
        return any(_fits(value, member) for member in get_args(kind))
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return type(value) is (get_origin(kind) or kind)


def _in_words(kind: Any) -> str:
    """A parameter's annotation for a sentence: `a number`, `he, xavier or None`."""
    words = {float: "a number", int: "a whole number", bool: "True or False", str: "a text", NoneType: "None"}
    words |= {tuple: "a tuple"}
    if get_origin(kind) is Literal:
        return ", ".join(str(value) for value in get_args(kind))
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(_in_words(member) for member in get_args(kind))
    return words[get_origin(kind) or kind]
