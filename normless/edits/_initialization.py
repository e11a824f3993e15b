"""Edits of initial values: weights drawn, scaled or calibrated; branch ends and logits that start at zero."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor, nn

from normless.edits._batches import profile
from normless.edits._edit import Edit, edit
from normless.edits._surgery import Surgery
from normless.edits._transformer import parts_of
from normless.errors import MissingValuesError
from normless.nn._initialization import INITIALIZATIONS as INITIALIZATIONS, Initialization as Initialization
from normless.residual import Layer, ResidualBlock
from normless.residual._classify import embedding_weights
from normless.signal._factors import Gain, gains

_TIED = "weight stays, since it embeds the input too"


@edit
class Reinitialize(Edit):
    """Draw weights (He et al. 2015; Glorot & Bengio 2010), and set biases to zero.

    A weight tied to an embedding is kept, since its scale is that of the input.

    Args:
        kind: the distribution, as in `normless.nn._initialization.initialize`.
    """

    loses = "draws new weights"

    kind: Initialization = "he"

    def apply(self, surgery: Surgery) -> None:
        if self.kind not in INITIALIZATIONS:
            raise surgery.unsupported("", f"{self.kind!r} is not one of {', '.join(INITIALIZATIONS)}")
        tied_paths = _tied_layers(surgery)
        for layer in surgery.places.weight_layers():
            tied = layer.path in tied_paths
            if not tied:
                _draw(surgery, layer, self.kind)
            for name in layer.shifts:
                nn.init.zeros_(surgery.parameter(name))
            surgery.record(layer.path, _TIED if tied else f"weight from {self.kind}")


def _tied_layers(surgery: Surgery) -> set[str]:
    """Return the paths of weight layers tied to an embedding: a new weight would change the input."""
    tables = embedding_weights(surgery.model)
    return {
        layer.path
        for layer in surgery.places.weight_layers()
        if any(id(surgery.parameter(name)) in tables for name in layer.parameters)
    }


def _draw(surgery: Surgery, layer: Layer, kind: Initialization) -> None:
    """Draw the weight of a layer, or each of the weights that an attention packs into one."""
    weight = None if ":" in layer.path else getattr(surgery.get(layer.path), "weight", None)
    if isinstance(weight, Tensor):
        INITIALIZATIONS[kind](weight)
    else:
        for part in parts_of(surgery, layer):
            part.change(INITIALIZATIONS[kind])


@edit
class ZeroBranchEnds(Edit):
    """Let the last weight layer of every branch start at zero, including its bias (Fixup, rule 1)."""

    loses = "sets the last layer of every branch to zero"

    def apply(self, surgery: Surgery) -> None:
        for block in surgery.places.blocks():
            if block.interpolates:
                reason = "its sum is x + c·(f(x) − x), and with a last layer of zeros not x but (1 − c)·x"
                raise surgery.unsupported(block.name, reason)
            for number, branch in enumerate(block.branches):
                last = surgery.places.last_weight(block, branch)
                known = [layer.path for layers in block.last_weights[number : number + 1] for layer in layers]
                for path in known or [last]:
                    start_at_zero(surgery, path)


@edit
class ZeroClassifier(Edit):
    """Let the classifier start at zero, for an initial loss of log(number of classes) (Fixup, rule 1).

    The classifier is the only head (`ResidualMap.heads`) that computes logits. A head is kept if a normalization, a
    ratio or a product with another output reads it, since zeros would end its training. Several heads, as in a
    detector or a variational autoencoder, are kept too. A weight tied to an embedding, as in language models, is
    kept, since zeros would erase the input.
    """

    loses = "sets the classifier to zero"

    def apply(self, surgery: Surgery) -> None:
        heads = surgery.map.heads
        logits = [head.path for head in heads if not head.obstacle]
        for head in heads:
            if head.obstacle:
                surgery.record(head.path, f"stays: {head.obstacle}")
            elif len(logits) > 1:
                others = ", ".join(path for path in logits if path != head.path)
                surgery.record(head.path, f"stays: {others} compute outputs too, so it is not the only classifier")
        path = surgery.map.classifier
        if path is None:
            surgery.record("", "it has no classifier to set to zero")
        elif not heads or logits == [path]:
            tied = path in _tied_layers(surgery)
            start_at_zero(surgery, path, weight=not tied)
            if tied:
                surgery.record(path, _TIED)


@edit
class ZeroLastGamma(Edit):
    """Let γ of the norm at the end of every branch start at zero (Goyal et al. 2017, section 5.1)."""

    loses = "sets γ of the last norm of every branch to zero"

    def apply(self, surgery: Surgery) -> None:
        for block in surgery.places.blocks():
            end = surgery.places.branch_end(block)
            if end is None or end.kind != "norm":
                raise surgery.unsupported(block.name, _why_not(surgery, block, end))
            gamma = surgery.get(end.path).weight
            if not isinstance(gamma, Tensor):
                raise surgery.unsupported(end.path, "the norm has no γ")
            nn.init.zeros_(gamma)
            surgery.record(end.path, "γ = 0")


def _why_not(surgery: Surgery, block: ResidualBlock, end: Layer | None) -> str:
    norms = surgery.places.left(block.branch_layers, "norm")
    if not norms:
        return "its branch has no norm"
    if end is None:
        return f"an operation that is not a layer follows the last norm of its branch, {norms[-1].path.lstrip(':')}"
    rest = block.branch_layers[block.branch_layers.index(norms[-1]) :]
    why = ", so the branch does not end in γ"
    if any(layer.kind == "activation" for layer in rest):
        why = ": at γ = 0 the activation between them passes no gradient, and the branch would stay at zero for good"
    return f"the last norm of its branch, {norms[-1].path.lstrip(':')}, is followed by {end.path}{why}"


@edit
class LSUV(Edit):
    """Give the output of every weight layer unit variance on a batch (Mishkin & Matas 2015, algorithm 1).

    The edit starts from orthogonal weights. In one forward pass on the example inputs of `convert`, it divides the
    weight of each layer by the standard deviation of its output over batch, channels and positions until that is 1
    within `tolerance`, before later layers read the output. A weight tied to an embedding is kept.

    Args:
        tolerance: the largest accepted |variance − 1|.
        most_steps: the number of corrections of a layer after which it does not converge.
    """

    needs = frozenset({"values", "inputs"})
    loses = "draws new weights"

    tolerance: float = 0.02
    most_steps: int = 10

    def apply(self, surgery: Surgery) -> None:
        tied = _tied_layers(surgery)
        layers = [layer for layer in surgery.places.weight_layers() if layer.path not in tied]
        for layer in layers:
            module = surgery.get(layer.path) if ":" not in layer.path and layer.called else None
            if not isinstance(getattr(module, "weight", None), Tensor):
                raise surgery.unsupported(layer.path, "it is not a layer with one weight and one output to scale")
        Reinitialize("orthogonal").apply(surgery)
        pending = {layer.path for layer in layers}

        def calibrate(path: str, layer: Any, inputs: tuple[Any, ...], output: Tensor) -> Tensor | None:
            """Scale the weight of a layer at its first call, and return its output."""
            if path not in pending:
                return None
            pending.discard(path)
            for _ in range(self.most_steps):
                variance = float(output.var(correction=0))
                if abs(variance - 1) <= self.tolerance:
                    surgery.record(path, f"output variance {variance:.3f}")
                    return output
                if not variance > 0 or variance == float("inf"):
                    break
                layer.weight.div_(variance**0.5)
                output = layer.forward(*inputs)
            raise surgery.unsupported(
                path, f"the variance of its output does not converge to 1; it is {variance:.4g}"
            )

        # In evaluation, dropout does not disturb the variances and batch norm keeps its statistics.
        profile(surgery, sorted(pending), calibrate)
        if pending:
            raise surgery.unsupported(sorted(pending)[0], "the layer does not run on the given batch")


@edit
class KeepScale(Edit):
    """Scale weights so that activations keep the second moment that norms gave, without data.

    Each weight layer that a norm reads gets the factor

        g = √((γ² + β²) / E[y²]),    E[y²] = mean over outputs of (m Σw + b)² + v Σw²,

    with the layer's weights w and bias b, and the mean m and variance v of its input with norms. For He's weights
    after a ReLU, m² + v = 1/2 and Σw² = 2, the gain is 1 (He et al. 2015, section 2.2). The second moment of the skip
    path then stays about 1 if branches start at zero, doubles with every block if they are unscaled, and grows to e
    if they start at 1/√L (De & Smith, sections 3 and 4).

    The output of a layer gets the second moment 1 if the layer begins a stream that norms read later (stem,
    projection, embeddings with positions, a class token), or ends a branch that reads a norm. Classifier, gates,
    attention and the feed-forward layers of a transformer are unchanged. A γ of 0 counts as 1. An embedding that is
    tied to the classifier is multiplied by √g, which keeps the scale of the logits but leaves the stream too small.

    Inputs are assumed to have second moment 1, and elements to be independent, channel by channel. Of n neighbours
    under a pooling, √n count as independent; of all positions under a mean, all do. Zero padding counts at the size
    of the example inputs. For gates, attention and products, the mean squares are propagated. Errors accumulate in a
    stream that passes many SiLU and gates: the logits of an EfficientNet-B0 are 0.45 to 47 times the normalized ones.

    Args:
        weights: `fresh` skips a network with trained norms, `all` does not.
    """

    of_random_weights = True

    weights: Literal["fresh", "all"] = "fresh"

    def apply(self, surgery: Surgery) -> None:
        if self.weights not in ("fresh", "all"):
            raise surgery.unsupported("", f"the weights are fresh or all, not {self.weights!r}")
        if surgery.log.removed.intersection(surgery.map.norms):
            raise surgery.unsupported("", "it reads the norms, and they are removed already; it comes before that")
        if not surgery.map.norms:
            surgery.record("", "left: no norm gave it a scale")
            return
        trained = surgery.places.trained_norm
        left = ""
        if surgery.places.is_meta:
            left = "its weights have no values on the device meta"
        elif self.weights == "fresh" and trained is not None:
            left = f"{trained} is trained, and so are the weights; keep_scale='all' scales them too, and "
            left += "nl.fold folds norms into trained weights exactly"
        if left:
            surgery.record("", f"left: {left}")
            if trained is not None and not surgery.places.is_meta:
                surgery.log.remarks.append(f"the weights stay as they were, {left}")
            return
        for gain in _gains(surgery):
            if not surgery.places.covers(gain.path):
                continue
            for name in gain.parameters:
                parameter = surgery.parameter(name).detach()
                (parameter if gain.rows is None else parameter.narrow(-2, *gain.rows)).mul_(gain.factor)
            what = "weight" if gain.rows is None else f"rows {gain.rows[0]} to {sum(gain.rows) - 1}"
            surgery.record(gain.path, f"{what} × {gain.factor:.4g}: {gain.why}")


def _gains(surgery: Surgery) -> list[Gain]:
    """Return the factors of weights that keep the scale of activations without norms."""
    if surgery.original is None:
        return gains(surgery.model, surgery.map.flow)
    if surgery.log.changes:
        raise MissingValuesError("The edits before this one may have changed weights.")
    return surgery.original.gains


def scaling_parameter(surgery: Surgery, layer: Layer) -> str:
    """Return the name of the parameter that sets the scale of a weight layer's output: its weight or its gain.

    Raises:
        UnsupportedEditError: the weight is divided by its own norm and has no gain.
    """
    weights = [name for name in layer.parameters if name not in layer.shifts]
    largest = max(weights, key=lambda weight: surgery.parameter(weight).numel())
    name = layer.gamma if largest in layer.scale_free else largest
    if name is None:
        reason = "its weight is divided by its own norm, so its scale has no effect and zeros are undefined"
        raise surgery.unsupported(layer.path, f"{reason}; skipinit multiplies the branch instead")
    return name


def start_at_zero(surgery: Surgery, path: str, weight: bool = True) -> None:
    """Let the weight and biases of the layer at `path` start at zero; only its biases if `weight` is False."""
    layer = surgery.map.by_path[path]
    if weight and ":" not in path and isinstance(surgery.get(path), nn.RNNBase):
        raise surgery.unsupported(path, "it is a recurrent layer, and its output is not proportional to one weight")
    scaling = [scaling_parameter(surgery, layer)] if weight else []
    for name in (*scaling, *layer.shifts):
        nn.init.zeros_(surgery.parameter(name))
    surgery.log.zeroed.update(scaling)
    if weight:
        surgery.record(path, "gain = 0" if scaling == [layer.gamma] else "weight = 0")
