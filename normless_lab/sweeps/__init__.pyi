from ._dispatch import Attempt as Attempt, LaboratoryListener as LaboratoryListener, SweepProgress as SweepProgress
from ._laboratory import Laboratory as Laboratory
from ._processes import ExecutorFactory as ExecutorFactory, LocalExecutor as LocalExecutor
from ._result_tables import (
    SHARE as SHARE,
    SweepResult as SweepResult,
    is_minimized as is_minimized,
    needed_runs as needed_runs,
    optima as optima,
    trained_threshold as trained_threshold,
)
from ._runs import (
    OUTCOMES as OUTCOMES,
    Kind as Kind,
    RunRow as RunRow,
    finished_epochs as finished_epochs,
    kind_of as kind_of,
    versions as versions,
)
from ._store import RunState as RunState
from ._sweep import Point as Point, RateGrid as RateGrid, Sweep as Sweep, axis_of as axis_of
