from ._divergence import LOSS_LIMIT as LOSS_LIMIT, first_diverged as first_diverged, has_diverged as has_diverged
from ._measure import (
    PROBES as PROBES,
    Measurements as Measurements,
    RideAlong as RideAlong,
    every as every,
    probe as probe,
)
from ._moments import (
    ChannelMoments as ChannelMoments,
    GradientMoments as GradientMoments,
    LayerPosition as LayerPosition,
    LogitGradients as LogitGradients,
    agreement as agreement,
    by_channel as by_channel,
    layer_positions as layer_positions,
    layer_table as layer_table,
    parameter_positions as parameter_positions,
)
from ._signal import PredictedRows as PredictedRows, named_moments as named_moments
from .dependence._influence import map_tensors as map_tensors
from .hooks._losses import Loss as Loss
from .hooks._observe import (
    LabelledBatch as LabelledBatch,
    compute_logits as compute_logits,
    descend as descend,
    observe as observe,
)
from .hooks._watcher import Setting as Setting, Watcher as Watcher
