from ._divergence import LOSS_LIMIT as LOSS_LIMIT, first_diverged as first_diverged, has_diverged as has_diverged
from ._gammas import GammaNorms as GammaNorms
from ._measure import (
    DEFAULT_PROBES as DEFAULT_PROBES,
    PROBES as PROBES,
    Measurements as Measurements,
    RideAlong as RideAlong,
    every as every,
    make_watchers as make_watchers,
    probe as probe,
    split_batch as split_batch,
)
from ._moments import (
    ChannelMoments as ChannelMoments,
    GradientMoments as GradientMoments,
    LayerPosition as LayerPosition,
    LogitGradients as LogitGradients,
    agreement as agreement,
    layer_positions as layer_positions,
    layer_table as layer_table,
    parameter_positions as parameter_positions,
)
from ._signal import (
    BlockGradients as BlockGradients,
    BlockMoments as BlockMoments,
    PredictedRows as PredictedRows,
    Signal as Signal,
    named_moments as named_moments,
    predicted_moments as predicted_moments,
)
from ._tools import (
    by_channel as by_channel,
    channel_axis as channel_axis,
    preserve_random_state as preserve_random_state,
    preserve_state as preserve_state,
    running as running,
)
from .dependence._influence import map_tensors as map_tensors
from .dependence._mixing import (
    ExampleMixing as ExampleMixing,
    MixingModule as MixingModule,
    mixes_examples as mixes_examples,
    without_zeros as without_zeros,
)
from .hooks._losses import Loss as Loss, loss_of as loss_of, own_loss as own_loss
from .hooks._observe import (
    Batch as Batch,
    compute_logits as compute_logits,
    compute_output as compute_output,
    descend as descend,
    observe as observe,
    takes_closure as takes_closure,
)
from .hooks._watcher import (
    BlockWatcher as BlockWatcher,
    Setting as Setting,
    Watcher as Watcher,
    attach_hooks as attach_hooks,
    logits_of as logits_of,
)
