"""Edits that remove, replace or move normalizations, or add dropout."""

from __future__ import annotations

from collections import OrderedDict
from copy import deepcopy
from itertools import accumulate, chain, pairwise
from math import sqrt
from typing import Literal, get_args

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from normless.edits._edit import Edit, edit
from normless.edits._modules import affine, not_in_place, own_path, sums_of
from normless.edits._norm_places import (
    batch_norm_like,
    idle_siblings,
    inside_of,
    keep_directions,
    module_of,
    outputs_at,
    readers_outside,
    remove_norms,
    replace_norm,
)
from normless.edits._surgery import Surgery
from normless.edits._transformer import StackEdit, makes_queries
from normless.errors import MissingValuesError
from normless.nn._activation import Pointwise
from normless.nn._channels import has_channels_first, of_channels
from normless.nn._function import Function
from normless.residual import Layer, ResidualBlock
from normless.residual._description import describe, with_article
from normless.residual._inside_norms import Inside, is_plain, scales_second_axis
from normless.residual._memory_order import output_order

FinalNorms = Literal["replace", "keep"]


@edit
class RemoveNorms(Edit):
    """Remove every normalization with its γ and β (Fixup, section 3; ZeroInit, section 4)."""

    changes = "norms removed"

    def apply(self, surgery: Surgery) -> None:
        remove_norms(surgery)


@edit
class KeepLayerNorms(Edit):
    """Keep a transformer with its layer norms unchanged (Vaswani et al. 2017, 3.1); refuse batch norms."""

    def apply(self, surgery: Surgery) -> None:
        for path in surgery.map.norms:
            norm = None if ":" in path else surgery.get(path)
            if isinstance(norm, _BatchNorm):
                alternative = "the scheme batch_norm keeps batch norms"
                what = f"it is {with_article(describe(norm))}"
                reason = f"{what}, and this scheme keeps transformers unchanged; {alternative}"
                own = "group_norm(groups=1) normalizes each example separately"
                raise surgery.unsupported(path, f"{reason}, and {own}")


@edit
class NormOnSkip(Edit):
    """Add a batch normalization to every block (De & Smith, table 4).

    Args:
        place: `after_sum`, as the table's heading says, or `skip_path`, the text's other reading.
    """

    loses = "adds a norm to every block"

    place: Literal["after_sum", "skip_path"] = "after_sum"

    def apply(self, surgery: Surgery) -> None:
        if self.place not in ("after_sum", "skip_path"):
            raise surgery.unsupported("", f"the place is after_sum or skip_path, not {self.place!r}")
        for block in surgery.places.blocks():
            total = sums_of(surgery, block)[-1]
            norm = batch_norm_like(surgery, surgery.places.last_weight(block)).train(total.training)
            setattr(total, "norm_total" if self.place == "after_sum" else "norm_skip", norm)
            surgery.record(block.name, f"{describe(norm)} {self.place.replace('_', ' ')}")


@edit
class OnlyFinalNorm(Edit):
    """Remove all norms, and put one batch normalization before the classifier (De & Smith, table 4 and D.2)."""

    loses = "adds a norm before the classifier"

    def apply(self, surgery: Surgery) -> None:
        path = surgery.places.classifier()
        remove_norms(surgery)
        classifier = affine(surgery, path)
        if not isinstance(classifier, nn.Linear):
            raise surgery.unsupported(path, "the classifier is not a linear layer")
        weight = classifier.weight
        norm = nn.BatchNorm1d(classifier.in_features, device=weight.device, dtype=weight.dtype)
        _put_before(surgery, path, norm, "batch norm")


@edit
class HeadDropout(Edit):
    """Add dropout before the classifier (ZeroInit, part 3), with a probability of 0.6, or 0.2 on ImageNet."""

    probability: float = 0.6

    def apply(self, surgery: Surgery) -> None:
        path = surgery.places.classifier()
        if not 0 <= self.probability < 1:
            raise surgery.unsupported(path, f"a drop probability lies in [0, 1), got {self.probability}")
        _put_before(surgery, path, nn.Dropout(self.probability), f"dropout {self.probability:g}")


@edit
class OnlyTopNorm(Edit):
    """Remove all norms except one after the last residual block (Bjorck et al., section 3.1 and appendix G).

    A pre-activation network keeps the norm that it has there. In other networks the norm comes after the last sum and
    its activation, before the pooling.
    """

    loses = "removes all norms but one"

    def apply(self, surgery: Surgery) -> None:
        last = surgery.places.blocks()[-1]
        kept = next((layer.path for layer in surgery.places.left(surgery.map.head_layers, "norm")), None)
        remove_norms(surgery, kept)
        if kept is not None:
            surgery.record(kept, "kept: the one norm at the top")
            return
        norm = batch_norm_like(surgery, surgery.places.last_weight(last))
        if last.activation_after_sum is None:
            sums_of(surgery, last)[-1].norm_total = norm.train(surgery.model.training)
            surgery.record(last.name, f"{describe(norm)} after the sum")
        else:
            path = own_path(surgery, next(layer for layer in last.after_sum if layer.kind == "activation"))
            surgery.replace(path, nn.Sequential(surgery.get(path), norm))
            surgery.record(path, f"{describe(norm)} after it")


@edit
class PointwiseNorms(Edit):
    """Replace every norm by γ·φ(αx + s) + β with the norm's γ and β (Zhu et al. 2025; Chen et al. 2025).

    Args:
        function: φ, `tanh` or `erf`.
        alpha: the initial α, learned for each norm.
        attention_alpha: the initial α of norms that the queries of an attention read; `alpha` if None.
        shift: the initial s, learned for each norm; no shift if None.
        final: whether to `replace` or `keep` the normalizations after the last block, which set the scale of the
            outputs' input.
    """

    function: Literal["tanh", "erf"]
    alpha: float = 0.5
    attention_alpha: float | None = None
    shift: float | None = None
    final: FinalNorms = "replace"

    def apply(self, surgery: Surgery) -> None:
        if self.final not in get_args(FinalNorms):
            raise surgery.unsupported("", f"final is replace or keep, not {self.final!r}")
        before, attention = "", set[str]()
        for layer in surgery.map.layers():
            before = layer.path if layer.kind == "norm" else before
            attention |= {before} if makes_queries(surgery, layer) else set()
        if not surgery.map.norms or (self.attention_alpha is not None and not any(attention)):
            what = "that an attention reads" if surgery.map.norms else "to replace"
            raise surgery.unsupported("", f"it has no normalization {what}")
        keep_directions(surgery)
        kept = self._kept(surgery)
        for layer in surgery.places.norms():
            if layer.path in kept:
                surgery.record(layer.path, "kept: the outputs are read from what it normalizes")
                continue
            own = self.attention_alpha if layer.path in attention else None
            self._replace(surgery, layer, self.alpha if own is None else own)

    def _kept(self, surgery: Surgery) -> set[str]:
        """Return the paths of the normalizations to keep."""
        if self.final == "replace":
            return set()
        found = {layer.path for layer in surgery.places.left(surgery.map.head_layers, "norm")}
        if not found:
            raise surgery.unsupported("", "no normalization that could be kept follows its last block")
        if {layer.path for layer in surgery.places.norms()} <= found:
            raise surgery.unsupported("", "all of its normalizations would be kept")
        return found

    def _replace(self, surgery: Surgery, layer: Layer, alpha: float) -> None:
        old, new = module_of(surgery, layer), Pointwise(self.function, alpha, self.shift)
        affine = (layer.gamma, next((name for name in layer.parameters if name != layer.gamma), None))
        new.weight, new.bias = (None if name is None else surgery.parameter(name) for name in affine)
        if new.weight is not None and layer.offset:
            new.weight = nn.Parameter(new.weight.detach() + layer.offset, new.weight.requires_grad)
        gamma = (layer.gamma or "").removeprefix(f"{layer.path}.")
        is_known = is_plain(old) or has_channels_first(old) or gamma not in dict(old.named_parameters())
        new.channels_first = has_channels_first(old) if is_known else self._scales_second(surgery, layer, old, gamma)
        new.order = output_order(old, surgery.places.input_shape(layer.path))
        new.to(next(chain(old.parameters(), surgery.model.parameters())))
        for reader in readers_outside(surgery, layer):
            not_in_place(surgery, reader)
        surgery.record(layer.path, f"{describe(old)} → {describe(new)}, α initially {alpha:.4g}")
        others = [self._of_idle(idle, layer, new, alpha) for idle in idle_siblings(surgery, layer)]
        replace_norm(surgery, layer, new, others)

    def _of_idle(self, idle: nn.Module, layer: Layer, like: Pointwise, alpha: float) -> Pointwise:
        """Return the function that replaces an idle sibling of the norm `layer`, with the sibling's γ and β."""
        new, own = Pointwise(self.function, alpha, self.shift), dict(idle.named_parameters())
        names = {
            "weight": layer.gamma,
            "bias": next((parameter for parameter in layer.parameters if parameter != layer.gamma), None),
        }
        for name, read in names.items():
            setattr(new, name, None if read is None else own[read.removeprefix(f"{layer.path}.")])
        if new.weight is not None and layer.offset:
            new.weight = nn.Parameter(new.weight.detach() + layer.offset, new.weight.requires_grad)
        new.channels_first, new.order = like.channels_first, like.order
        return new.to(like.alpha)

    def _scales_second(self, surgery: Surgery, layer: Layer, old: nn.Module, gamma: str) -> bool:
        """Whether γ scales the second axis of the input of a norm of an unknown class, which is run to find out."""
        if surgery.original is not None and type(old).__module__.partition(".")[0] != "torch" and gamma:
            raise MissingValuesError("Which axis γ scales shows when the norm runs.")
        return scales_second_axis(old, gamma, surgery.places.input_shape(layer.path))


@edit
class LayerNormScaling(StackEdit):
    """Multiply norms ahead of branches by 1/√l, with l the number of the transformer layer (Sun et al. 2025)."""

    loses = "divides the outputs of norms by √l"

    def apply(self, surgery: Surgery) -> None:
        for stack in self.stacks(surgery):
            attends = [any(makes_queries(surgery, layer) for layer in block.branch_layers) for block in stack]
            # Cross attention does not begin a layer; if attention and feed-forward share a branch, each block does.
            begins = [starts and (all(attends) or not before) for before, starts in pairwise([False, *attends])]
            for number, block in zip(accumulate(begins), stack, strict=True):
                if not number:
                    raise surgery.unsupported(
                        block.name, "it is not an attention, with which a transformer layer begins"
                    )
                for norm in _norms_ahead(surgery, block):
                    path, factor = own_path(surgery, norm), 1 / sqrt(number)
                    if inside_of(surgery, norm).after:
                        raise surgery.unsupported(path, "an activation follows the normalization inside its module")
                    parts = OrderedDict(norm=surgery.get(path), factor=Function(torch.mul, (factor,)))
                    surgery.replace(path, nn.Sequential(parts))
                    surgery.record(path, f"output × {factor:.4g}")


@edit
class BranchEndNorms(Edit):
    """Add a norm at the end of every branch: x + N(f(N(x))) (Kim et al. 2025, Peri-LN; Ding et al. 2021).

    It is like the norm ahead of the branch, with γ initially `gamma`. Dropout and layer scale modules after the
    branch's last layer come after the norm.
    """

    loses = "adds a norm to every branch"

    gamma: float = 1.0

    def apply(self, surgery: Surgery) -> None:
        for block in surgery.places.blocks():
            ahead = _norms_ahead(surgery, block)
            for position, (branch, end) in enumerate(zip(block.branches, block.ends, strict=True)):
                if end is not None and end.kind == "norm":
                    raise surgery.unsupported(block.name, f"its branch ends in a normalization already, {end.path}")
                norm = self._fresh(surgery, block, ahead[0], surgery.places.last_weight(block, branch))
                norm.train(surgery.model.training)
                after = branch[branch.index(end) + 1 :] if end is not None else ()
                if after and after[0].kind in ("dropout", "scale") and surgery.places.stands_alone(after[0]):
                    parts = OrderedDict(norm=norm, factor=surgery.get(after[0].path))
                    surgery.replace(after[0].path, nn.Sequential(parts))
                elif len(sums_of(surgery, block)) < len(block.branches):
                    raise surgery.unsupported(block.name, "its branches are added to each other before the skip path")
                else:
                    sums_of(surgery, block)[position].norm_branch = norm
                surgery.record(block.name, f"{describe(norm)} at the end of the branch, γ initially {self.gamma:.4g}")

    def _fresh(self, surgery: Surgery, block: ResidualBlock, like: Layer, last: str) -> nn.Module:
        """Make a norm like another with new γ and β for the output of the weight layer at `last`."""
        old, gamma = module_of(surgery, like), (like.gamma or "").rpartition(".")[2]
        if isinstance(old, _BatchNorm):
            norm, gamma = batch_norm_like(surgery, last), "weight"
        elif list(old.children()) or inside_of(surgery, like) != Inside():
            raise surgery.unsupported(like.path, f"{with_article(type(old).__name__)} does more than normalize")
        elif block.identity_skip and not block.skip_layers:
            # The branch returns the shape that the block reads.
            norm = deepcopy(old)
        else:
            with surgery.log.refusing_at(like.path):
                norm = of_channels(old, outputs_at(surgery, last))
        for name, parameter in norm.named_parameters():
            nn.init.constant_(parameter.requires_grad_(), self.gamma - like.offset if name == gamma else 0.0)
        return norm


def _norms_ahead(surgery: Surgery, block: ResidualBlock) -> list[Layer]:
    """Return the norms with which the branches of a block begin; refuse a branch that begins otherwise."""
    ahead = ((layer for layer in block.shared_layers + branch if layer.kind != "scale") for branch in block.branches)
    first = dict.fromkeys(next(layers, None) for layers in ahead)
    norms = [layer for layer in first if layer is not None and layer.kind == "norm"]
    if len(norms) < len(first):
        raise surgery.unsupported(block.name, "its branch does not begin with a normalization")
    return norms


def _put_before(surgery: Surgery, path: str, module: nn.Module, what: str) -> None:
    """Put a module before the classifier, after modules that are there already."""
    classifier = affine(surgery, path)
    module.train(classifier.training)
    classifier.before = module if classifier.before is None else nn.Sequential(classifier.before, module)
    surgery.record(path, f"{what} before it")
