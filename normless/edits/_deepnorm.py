"""Initializations of deep transformers: DeepNorm with normalization, T-Fixup without."""

from __future__ import annotations

from functools import partial
from itertools import chain

from torch import nn

from normless.edits._edit import edit
from normless.edits._modules import sums_of
from normless.edits._surgery import Surgery
from normless.edits._transformer import Matrix, StackEdit, matrices
from normless.residual import ResidualBlock
from normless.residual._classify import embedding_weights


@edit
class DeepNorm(StackEdit):
    """Turn post-norm transformers into norm(α·x + f(x)), f with small weights (Wang et al. 2022, table 2, figure 2).

    Values, output projections and feed-forward layers are drawn with Xavier's gain β, queries and keys with gain 1;
    their biases become zero. For one stack of N layers, which has L = 2N branches:

        α = (2N)^(1/4) = L^(1/4),   β = (8N)^(-1/4) = (4L)^(-1/4)

    For an encoder of N layers that a decoder of M layers reads:

        encoder  α = 0.81 · (N⁴M)^(1/16),   β = 0.87 · (N⁴M)^(-1/16)
        decoder  α = (3M)^(1/4),            β = (12M)^(-1/4)
    """

    loses = "scales skip paths and weights"

    def apply(self, surgery: Surgery) -> None:
        encoder, decoder = self.stacks(surgery)
        _check_post_norm(surgery, encoder + decoder)
        uses = matrices(surgery, encoder + decoder)
        n, m = len(encoder) // 2, len(decoder) // 3
        stacks = [(encoder, len(encoder) ** 0.25, (4 * len(encoder)) ** -0.25)]
        if decoder:
            stacks = [(encoder, 0.81 * (n**4 * m) ** (1 / 16), 0.87 * (n**4 * m) ** (-1 / 16))]
            stacks.append((decoder, (3 * m) ** 0.25, (12 * m) ** -0.25))
        for blocks, alpha, beta in stacks:
            for block in blocks:
                sums_of(surgery, block)[-1].skip_factor *= alpha
                surgery.record(block.name, f"skip path × {alpha:.4g}")
                _draw(surgery, uses[block], beta)
                weights = surgery.places.left(block.branch_layers, "weight")
                for name in chain(*(layer.shifts for layer in weights)):
                    nn.init.zeros_(surgery.parameter(name))


@edit
class TFixup(StackEdit):
    """Initialize transformers so that they train without normalization and warm-up (Huang et al. 2020, 3.2).

    Weights are drawn from Xavier's normal distribution and biases become zero. Embeddings of dimension d are normal
    with standard deviation d^(-1/2). Then values, output projections and feed-forward layers are scaled by

        0.67 · N^(-1/4) in an encoder, or a single stack, of N layers;   (9M)^(-1/4) in a decoder of M layers

    and embeddings by (9N)^(-1/4), those of a decoder by (9M)^(-1/4). The normalizations must be removed before.
    """

    needs = frozenset({"no norms"})
    loses = "rescales weights"

    def apply(self, surgery: Surgery) -> None:
        encoder, decoder = self.stacks(surgery)
        uses = matrices(surgery, encoder + decoder)
        n, m = len(encoder) / 2, len(decoder) // 3
        on_branches = {matrix.parameter for matrix in chain(*uses.values())}
        tables = embedding_weights(surgery.model)
        for layer in surgery.places.weight_layers():
            for name in layer.parameters:
                parameter = surgery.parameter(name)
                if name in on_branches or id(parameter) in tables:
                    continue
                if parameter.dim() > 1:
                    nn.init.xavier_normal_(parameter)
                    surgery.record(layer.path, "weight from xavier")
                elif name in layer.shifts:
                    nn.init.zeros_(parameter)
        for blocks, gain in ((encoder, 0.67 * n**-0.25), (decoder, (9 * max(m, 1)) ** -0.25)):
            for block in blocks:
                _draw(surgery, uses[block], gain)
        for path, module in surgery.model.named_modules():
            if isinstance(module, nn.Embedding):
                factor = (9 * (m if decoder and self.decoder in path.split(".") else n)) ** -0.25
                nn.init.normal_(module.weight, std=module.embedding_dim**-0.5 * factor)
                if module.padding_idx is not None:
                    module.weight.detach()[module.padding_idx].zero_()
                surgery.record(path, f"embedding normal, × {factor:.4g}")


def _check_post_norm(surgery: Surgery, blocks: tuple[ResidualBlock, ...]) -> None:
    for block in blocks:
        inside = surgery.places.left(block.shared_layers + block.branch_layers, "norm")
        left = [layer.path for layer in inside if not layer.gating]
        if left or not surgery.places.left(block.after_sum, "norm"):
            reason = f"its branch has one, {left[0].lstrip(':')}" if left else "it has none there"
            needs = "DeepNorm is for transformers whose normalizations follow the residual sums"
            raise surgery.unsupported(block.name, f"{needs}, and {reason}")


def _draw(surgery: Surgery, drawn: list[Matrix], gain: float) -> None:
    """Draw matrices with Xavier's variance 2·gain² / (fan-in + fan-out), queries and keys with gain 1."""
    for matrix in drawn:
        own = 1.0 if matrix.use in ("query", "key") else gain
        matrix.change(partial(nn.init.xavier_normal_, gain=own))
        what = matrix.path if matrix.use == "other" else f"{matrix.path}, {matrix.use}"
        surgery.record(matrix.path, f"{what}: weight from xavier × {own:.4g}")
