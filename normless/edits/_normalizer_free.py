"""Edits of normalizer-free networks: standardized weights, and branches with inputs of unit variance."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import isfinite, sqrt

from torch.nn.modules.conv import _ConvNd

from normless.edits._edit import Edit, edit
from normless.edits._modules import affine, changed, operation, own_path, sums_of
from normless.edits._surgery import Surgery
from normless.nn._activation import ScaledActivation
from normless.nn._standardized import ScaledStd, scaled_std
from normless.residual import Layer, ResidualBlock, ResidualMap
from normless.residual._classify import kind_of
from normless.signal._quadrature import Stream, activation_gain, is_homogeneous

_NO_WEIGHT = "something that has no weight, such as a pooling, and the variance after it is not known in advance"


@edit
class StandardizeWeights(Edit):
    """Standardize every weight per output channel, with a learnable gain (Brock et al. 2021, equation 1).

        Ŵ_i = γ · g_i · (W_i - μ_i) / (σ_i · √fan-in),   γ = 1 / √Var[φ(z)], z ~ N(0, 1)

    γ is the gain of the activation φ that the layer reads on its own path, 1 without an activation. It is part of the
    weight and so costs nothing. The classifier and the gating layers of squeeze-excite are unchanged.
    """

    changes = "layers"

    def apply(self, surgery: Surgery) -> None:
        refuse_fused(surgery, [norm for norm in surgery.map.norms if norm in surgery.log.removed])
        for path, ahead in _paths(surgery.map):
            # The path so far, since a module may be an activation here and later one of the residual stream.
            inside = {layer.path for layer in ahead}
            for layer in path:
                if layer.kind == "weight" and not layer.gating and layer.path != surgery.map.classifier:
                    source = surgery.places.input_of(layer)
                    reads = source is not None and source.kind == "activation" and source.path in inside
                    self._standardize(surgery, layer, source if reads else None)
                inside.add(layer.path)

    def _standardize(self, surgery: Surgery, layer: Layer, activation: Layer | None) -> None:
        affine(surgery, layer.path)
        new = changed(surgery, layer.path, scaled_std)
        gain = 1.0 if activation is None else activation_gain(operation(surgery, activation))
        if activation is not None and not isfinite(gain):
            reason = "the activation is constant, and no gain gives it a variance of 1"
            raise surgery.unsupported(activation.path, reason)
        new.scale *= gain
        surgery.record(layer.path, "weight standardized" if gain == 1 else f"weight standardized, × {gain:.4g}")


@edit
class StandardizeConvolutions(Edit):
    """Standardize convolutions per output channel, Ŵ_i = (W_i - μ_i) / σ_i, without a gain (Qiao et al. 2019)."""

    loses = "standardizes weights without a gain that could keep their scale"

    def apply(self, surgery: Surgery) -> None:
        layers = [layer for layer in surgery.places.weight_layers() if not layer.gating and ":" not in layer.path]
        layers = [layer for layer in layers if isinstance(surgery.get(layer.path), _ConvNd)]
        if not any(layer in block.branch_layers for layer in layers for block in surgery.places.blocks()):
            raise surgery.unsupported("", "it is for convolutional networks, and no branch has a convolution")
        for layer in layers:
            affine(surgery, layer.path)
            new = changed(surgery, layer.path, scaled_std)
            new.gain, new.scale = None, sqrt(new.weight[0].numel())
            surgery.record(layer.path, "weight standardized, no gain")


def refuse_fused(surgery: Surgery, norms: Iterable[str]) -> None:
    """Refuse norms that contain an activation, such as those of timm, since the map has no layer for it."""
    for norm in norms:
        if ":" not in norm and any(kind_of(module) == "activation" for module in surgery.get(norm).modules()):
            reason = "an activation was part of this normalization, and the map does not say what reads it"
            raise surgery.unsupported(norm, reason)


def _paths(found: ResidualMap) -> Iterator[tuple[tuple[Layer, ...], tuple[Layer, ...]]]:
    """Iterate over the layers of every path, with the layers ahead that feed it and not the residual stream."""
    for outside in (found.stem_layers, found.trunk_layers, found.head_layers):
        yield outside, ()
    for block in found.blocks:
        yield block.shared_layers + block.branch_layers, ()
        yield block.skip_layers, block.shared_layers


@edit
class PredictedVariance(Edit):
    """Turn every block into x + α·f(x / β), β the predicted standard deviation of x (Brock et al. 2021, section 3).

    With standardized weights f keeps the variance, so the variance of the stream is known in advance. It is 1 after
    the stem, grows by α² in every block, and is 1 + α² after a block with a weight layer on its skip path, which
    reads x / β too. Activations after the sum and zeros of a padded skip path are included. Operations outside the
    map, such as a pooling of the stem, are assumed to keep the variance. 1/β and the gains are part of the weights,
    α of the sum.

    Args:
        alpha: α, the standard deviation of a branch's contribution; 0.2 in the papers.
    """

    needs = frozenset({"no norms"})
    of_random_weights = True

    alpha: float = 0.2

    def apply(self, surgery: Surgery) -> None:
        if not self.alpha > 0:
            raise surgery.unsupported("", f"α is a number above 0, got {self.alpha}")
        blocks = surgery.places.blocks()
        for layer in _main(surgery, surgery.map.trunk_layers):
            reason = "it lies between blocks and belongs to none, so the variance after it is not known in advance"
            raise surgery.unsupported(layer.path, reason)
        for block in blocks:
            _check(surgery, block)
        stream, channels = _after_stem(surgery)
        for block in blocks:
            deviation = sqrt(stream.variance)
            _divide_input(surgery, block, deviation)
            sums_of(surgery, block)[-1].branch_factor *= self.alpha
            surgery.record(block.name, f"x + {self.alpha:.4g}·f(x / {deviation:.4g})")
            width = _standardized(surgery, surgery.places.last_weight(block)).weight.shape[0]
            stream = _after_skip(surgery, block, stream, channels / width).plus(self.alpha**2)
            for activation in _main(surgery, block.after_sum, "activation"):
                stream = stream.through(operation(surgery, activation))
            channels = width


def _after_stem(surgery: Surgery) -> tuple[Stream, int]:
    """Return the stream that the first block reads and its channels (0 if no stem layer has a weight)."""
    stream, channels = Stream.standard(), 0
    for layer in surgery.map.stem_layers:
        if layer.kind == "weight" and not layer.gating:
            stream, channels = Stream.standard(), _standardized(surgery, layer.path).weight.shape[0]
        elif layer.kind == "activation" and surgery.places.is_left(layer):
            stream = stream.through(operation(surgery, layer))
    return stream, channels


def _after_skip(surgery: Surgery, block: ResidualBlock, stream: Stream, share: float) -> Stream:
    """Return the stream at the end of the skip path; `share` is the stream's share of the sum's channels."""
    if block.skip:
        return Stream.standard()
    if block.identity_skip:
        return stream
    if 0 < share < 1:
        return stream.padded(share)
    raise surgery.unsupported(block.name, f"its skip path changes the activations by {_NO_WEIGHT}")


def _divide_input(surgery: Surgery, block: ResidualBlock, deviation: float) -> None:
    """Divide the input of branch and skip path by β, in the weights that read x or in the activation that does.

    The calls of a repeated module cannot be distinguished by their readers, so its first call is divided.
    """
    layers = tuple(_main(surgery, block.shared_layers + block.branch_layers))
    first, skip = layers[0], tuple(_main(surgery, block.skip_layers, "weight"))
    readers = [layer for layer in skip[:1] if not _reads_shared(surgery, block, layer)]
    if first.kind == "weight":
        readers.append(first)
    elif first.path not in surgery.map.repeated and is_homogeneous(operation(surgery, first)):
        readers += [layer for layer in (*layers, *skip) if _reads(surgery, layer, first)]
    else:
        path = own_path(surgery, first)
        surgery.replace(path, ScaledActivation(surgery.get(path), 1 / deviation))
    for layer in readers:
        _standardized(surgery, layer.path).scale /= deviation


def _check(surgery: Surgery, block: ResidualBlock) -> None:
    """Refuse a block whose branch is more than a chain of weight layers and activations."""
    end = surgery.places.branch_end(block)
    layers = tuple(_main(surgery, block.shared_layers + block.branch_layers))
    skip = tuple(_main(surgery, block.skip_layers))
    reason = None
    if len(block.branches) > 1 or block.inner:
        what = "residual blocks inside its branch" if block.inner else f"{len(block.branches)} branches"
        reason = f"it has {what}, and the recursion is for one plain branch"
    elif not block.branch or end is None or end.kind != "weight":
        reason = "its branch does not end in a weight layer, so the variance at its end is not known in advance"
    elif skip and skip[-1].kind != "weight":
        reason = f"its skip path ends in {skip[-1].path}, which is not a weight layer"
    if reason is not None:
        raise surgery.unsupported(block.name, reason)
    for path in (layers, skip):
        for layer in path:
            if layer.kind == "weight":
                _standardized(surgery, layer.path)
            if layer != path[0] and not any(_reads(surgery, layer, source) for source in path):
                reason = "its input is not the output of one layer of its path, and has an unknown variance"
                raise surgery.unsupported(layer.path, reason)
    if skip and not _reads_shared(surgery, block, skip[0]):
        same = surgery.places.input_of(skip[0]) == surgery.places.input_of(layers[0])
        if any(_main(surgery, block.shared_layers)) or not same:
            raise surgery.unsupported(skip[0].path, f"it does not read what the branch reads, but {_NO_WEIGHT}")


def _standardized(surgery: Surgery, path: str) -> ScaledStd:
    layer = surgery.get(path) if ":" not in path else None
    if not isinstance(layer, ScaledStd):
        raise surgery.unsupported(path, "its weight is not standardized; StandardizeWeights does that before")
    return layer


def _reads(surgery: Surgery, layer: Layer, source: Layer) -> bool:
    """Whether the layer only reads the output of `source`, with at most removed norms and dropout in between."""
    read = surgery.places.input_of(layer)
    while read is not None and read.kind == "dropout":
        read = surgery.places.input_of(read)
    return read is not None and read.path == source.path


def _reads_shared(surgery: Surgery, block: ResidualBlock, layer: Layer) -> bool:
    """Whether a skip path's first layer reads a layer that the branch reads too, rather than x itself."""
    return any(_reads(surgery, layer, source) for source in _main(surgery, block.shared_layers))


def _main(surgery: Surgery, layers: tuple[Layer, ...], *kinds: str) -> Iterator[Layer]:
    """Return the remaining layers of some kinds (by default weight layers and activations), without gates."""
    chosen = kinds or ("weight", "activation")
    return (layer for layer in layers if layer.kind in chosen and not layer.gating and surgery.places.is_left(layer))
