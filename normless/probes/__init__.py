"""Measurements of networks, each with its prediction; names are imported on first use."""

from typing import TYPE_CHECKING

from normless.lazy import attach

if TYPE_CHECKING:
    from normless._internal.state import preserve_random_state as preserve_random_state
    from normless._internal.state import preserve_state as preserve_state
    from normless._internal.state import running as running
    from normless.nn.channels import by_channel as by_channel
    from normless.nn.channels import channel_axis as channel_axis
    from normless.probes.dependence.influence import map_tensors as map_tensors
    from normless.probes.dependence.mixing import ExampleMixing as ExampleMixing
    from normless.probes.dependence.mixing import MixingModule as MixingModule
    from normless.probes.dependence.mixing import mixes_examples as mixes_examples
    from normless.probes.dependence.mixing import without_zeros as without_zeros
    from normless.probes.divergence import LOSS_LIMIT as LOSS_LIMIT
    from normless.probes.divergence import first_diverged as first_diverged
    from normless.probes.divergence import has_diverged as has_diverged
    from normless.probes.gammas import GammaNorms as GammaNorms
    from normless.probes.hooks.losses import Loss as Loss
    from normless.probes.hooks.losses import loss_of as loss_of
    from normless.probes.hooks.losses import own_loss as own_loss
    from normless.probes.hooks.observe import Batch as Batch
    from normless.probes.hooks.observe import compute_logits as compute_logits
    from normless.probes.hooks.observe import compute_output as compute_output
    from normless.probes.hooks.observe import descend as descend
    from normless.probes.hooks.observe import observe as observe
    from normless.probes.hooks.observe import takes_closure as takes_closure
    from normless.probes.hooks.watcher import BlockWatcher as BlockWatcher
    from normless.probes.hooks.watcher import Setting as Setting
    from normless.probes.hooks.watcher import Watcher as Watcher
    from normless.probes.hooks.watcher import attach_hooks as attach_hooks
    from normless.probes.hooks.watcher import logits_of as logits_of
    from normless.probes.measure import DEFAULT_PROBES as DEFAULT_PROBES
    from normless.probes.measure import PROBES as PROBES
    from normless.probes.measure import Measurements as Measurements
    from normless.probes.measure import RideAlong as RideAlong
    from normless.probes.measure import every as every
    from normless.probes.measure import make_watchers as make_watchers
    from normless.probes.measure import probe as probe
    from normless.probes.measure import split_batch as split_batch
    from normless.probes.moments import ChannelMoments as ChannelMoments
    from normless.probes.moments import GradientMoments as GradientMoments
    from normless.probes.moments import LayerPosition as LayerPosition
    from normless.probes.moments import LogitGradients as LogitGradients
    from normless.probes.moments import agreement as agreement
    from normless.probes.moments import layer_positions as layer_positions
    from normless.probes.moments import layer_table as layer_table
    from normless.probes.moments import parameter_positions as parameter_positions
    from normless.probes.signal import BlockGradients as BlockGradients
    from normless.probes.signal import BlockMoments as BlockMoments
    from normless.probes.signal import PredictedRows as PredictedRows
    from normless.probes.signal import Signal as Signal
    from normless.probes.signal import named_moments as named_moments
    from normless.probes.signal import predicted_moments as predicted_moments
else:
    __getattr__, __dir__, __all__ = attach(__name__, __file__)
