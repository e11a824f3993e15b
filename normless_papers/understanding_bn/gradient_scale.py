"""The size of the gradients at initialization of networks that differ in their norms."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pandas as pd
import torch
import torch.nn.functional as F

from normless.models import build_model
from normless.sweeps import convert
from normless_papers.artefact import Context
from normless_papers.claims import Estimate, replicates
from normless_papers.effort import Effort
from normless_papers.seeded_inputs import MeasuredBatch, seeded, training_batch
from normless_papers.understanding_bn.protocol import DEPTH


def gradient_scales(
    context: Context, effort: Effort, schemes: Mapping[str, str], *, batch_size: int, draws: int
) -> dict[str, Estimate]:
    """log₁₀ of the norm of the cross entropy's gradient, over the weights of all convolutions in the blocks.

    Gradients are of a ResNet-110 whatever the effort: it is at that depth that norms decide their size. The networks
    of one draw start from one seed and see the same minibatch.
    """
    batch = training_batch(context, effort.data, batch_size)
    seeds = range(context.seed, context.seed + draws)
    scales = {
        name: {seed: _scale(batch, f"normless:resnet_cifar(depth={DEPTH})", scheme, seed) for seed in seeds}
        for name, scheme in schemes.items()
    }
    return {name: replicates(pd.Series(values)) for name, values in scales.items()}


def _scale(batch: MeasuredBatch, network: str, scheme: str, seed: int) -> float:
    channels, height, width = batch.inputs.shape[1:]
    with seeded(seed):
        built = build_model(network, classes=batch.classes, image_shape=(channels, height, width))
        model = convert(built, scheme, batch.inputs).train()
    weights = [weight for path, weight in model.named_parameters() if "blocks." in path and weight.dim() == 4]
    loss = F.cross_entropy(model(batch.inputs), batch.targets)
    squares = [gradient.double().square().sum() for gradient in torch.autograd.grad(loss, weights)]
    return 0.5 * math.log10(float(torch.stack(squares).sum()))
