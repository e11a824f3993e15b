"""What training made of γ and of the variance in the blocks: networks trained in the artefact's own folder."""

from __future__ import annotations

import pandas as pd
from torch import Tensor, nn

from normless.probes import probe
from normless.train import Settings, TrainConfig
from normless_papers.artefact import Context


def trained_by(context: Context, config: Settings) -> nn.Module:
    """The network that a configuration trains, on the CPU in evaluation mode; trained once for a folder.

    The laboratory keeps results and no weights, so the run is carried out here; one that was interrupted goes on.
    """
    from normless.train import train, trained_network

    assert isinstance(config, TrainConfig)
    place = context.directory / config.hash[:16]
    train(config, place)
    return trained_network(place)


def branch_shares(context: Context, config: Settings, inputs: Tensor) -> pd.DataFrame:
    """A row per block of the trained network: `name`, `gamma_last`, `branch_share`.

    Args:
        context: in whose folder it is trained.
        config: of the run.
        inputs: images, shape (B, C, H, W), to measure it on; their statistics are those of the norms.

    Returns:
        γ_last is the root of its mean square; the share is the branch's second moment over the skip path's.
    """
    network = trained_by(context, config)
    table = probe(network, inputs, ["stream"]).stream
    share = table["branch_second_moment"] / table["skip_second_moment"]
    return table[["name", "gamma_last"]].assign(branch_share=share)
