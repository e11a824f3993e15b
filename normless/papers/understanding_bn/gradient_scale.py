"""The size of the gradients at initialization of networks that differ in their norms."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F

from normless.conversion import convert
from normless.models.spec import build_model
from normless.papers.artefact import Context
from normless.papers.batches import training_batch
from normless.papers.draws import seeded
from normless.papers.understanding_bn.protocol import Effort


def gradient_scales(
    context: Context, effort: Effort, schemes: Mapping[str, str], batch_size: int
) -> dict[str, float]:
    """log₁₀ of the norm of the cross entropy's gradient, over the weights of all convolutions in the blocks.

    Gradients are of a ResNet-110 whatever the effort: it is at that depth that norms decide their size. Every network
    is drawn from the context's seed and sees the same
    minibatch.

    Args:
        context: whose data and seed are taken.
        effort: whose data.
        schemes: by the names that the result has.
        batch_size: images in the minibatch.
    """
    batch = training_batch(context, effort.data, batch_size)
    channels, height, width = batch.inputs.shape[1:]
    scales = {}
    for name, scheme in schemes.items():
        with seeded(context.seed):
            model = build_model(effort.network(110), classes=batch.classes, image_shape=(channels, height, width))
            network = convert(model, scheme, batch.inputs).train()
        weights = [weight for path, weight in network.named_parameters() if "blocks." in path and weight.dim() == 4]
        loss = F.cross_entropy(network(batch.inputs), batch.targets)
        squares = [gradient.double().square().sum() for gradient in torch.autograd.grad(loss, weights)]
        scales[name] = 0.5 * math.log10(float(torch.stack(squares).sum()))
    return scales
