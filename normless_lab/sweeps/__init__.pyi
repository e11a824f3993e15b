from ._card import CardExecutor as CardExecutor
from ._clusters import RayExecutor as RayExecutor, SlurmExecutor as SlurmExecutor
from ._dispatch import Attempt as Attempt, LaboratoryListener as LaboratoryListener, SweepProgress as SweepProgress
from ._laboratory import Laboratory as Laboratory, Shard as Shard, WeightsError as WeightsError
from ._page import SweepFigure as SweepFigure, write_sweep_page as write_sweep_page
from ._processes import (
    Executor as Executor,
    ExecutorFactory as ExecutorFactory,
    LocalExecutor as LocalExecutor,
    WorkerDiedError as WorkerDiedError,
)
from ._result_tables import (
    SHARE as SHARE,
    SweepResult as SweepResult,
    further_points as further_points,
    is_minimized as is_minimized,
    needed_runs as needed_runs,
    optima as optima,
    sweep_result as sweep_result,
    trained_threshold as trained_threshold,
)
from ._runs import (
    KINDS as KINDS,
    METRICS as METRICS,
    OUTCOMES as OUTCOMES,
    Kind as Kind,
    RunOutcome as RunOutcome,
    RunRow as RunRow,
    finished_epochs as finished_epochs,
    is_locked as is_locked,
    kind_of as kind_of,
    machine as machine,
    versions as versions,
)
from ._status import (
    Prunable as Prunable,
    SweepStatus as SweepStatus,
    prunable as prunable,
    prune as prune,
    sweep_status as sweep_status,
)
from ._store import RunState as RunState, StateError as StateError
from ._sweep import Point as Point, RateGrid as RateGrid, Sweep as Sweep, SweepError as SweepError, axis_of as axis_of
