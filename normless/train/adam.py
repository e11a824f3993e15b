"""Adam on a network's parameters by group."""

from __future__ import annotations

from torch import Tensor, nn
from torch.optim import Adam, AdamW, Optimizer

from normless.train.assembly import groups_of_config
from normless.train.settings import AdamSettings


def build_adam(config: AdamSettings, network: nn.Module, *inputs: Tensor) -> Optimizer:
    """Adam on the groups of the decay policy; AdamW where the decay is decoupled.

    Args:
        config: of the run.
        network: on its device.
        inputs: what it is traced on.
    """
    groups = groups_of_config(config, network, *inputs)
    kind = AdamW if config.decoupled_decay else Adam
    return kind(groups, lr=config.rate, betas=(config.beta1, config.beta2), eps=config.epsilon, fused=True)
