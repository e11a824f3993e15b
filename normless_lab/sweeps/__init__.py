"""Experiments of many runs: their definition, the processes that execute them, and their display."""

from typing import TYPE_CHECKING

from normless.extras import require_extra
from normless.lazy import attach

require_extra("lab", "A sweep", "sqlalchemy", "orjson")

if TYPE_CHECKING:
    from normless_lab.sweeps.dispatch import Attempt as Attempt
    from normless_lab.sweeps.executors.card import CardExecutor as CardExecutor
    from normless_lab.sweeps.executors.executor import Executor as Executor
    from normless_lab.sweeps.executors.executor import ExecutorFactory as ExecutorFactory
    from normless_lab.sweeps.executors.executor import WorkerDiedError as WorkerDiedError
    from normless_lab.sweeps.executors.local import LocalExecutor as LocalExecutor
    from normless_lab.sweeps.executors.ray import RayExecutor as RayExecutor
    from normless_lab.sweeps.executors.slurm import SlurmExecutor as SlurmExecutor
    from normless_lab.sweeps.kept_scale import without_kept_scale as without_kept_scale
    from normless_lab.sweeps.laboratory import Laboratory as Laboratory
    from normless_lab.sweeps.laboratory import Shard as Shard
    from normless_lab.sweeps.laboratory import WeightsError as WeightsError
    from normless_lab.sweeps.optimum import SHARE as SHARE
    from normless_lab.sweeps.optimum import is_minimized as is_minimized
    from normless_lab.sweeps.optimum import optima as optima
    from normless_lab.sweeps.optimum import trained_threshold as trained_threshold
    from normless_lab.sweeps.page import SweepFigure as SweepFigure
    from normless_lab.sweeps.page import write_sweep_page as write_sweep_page
    from normless_lab.sweeps.planned import MissingRunsError as MissingRunsError
    from normless_lab.sweeps.planned import PlannedLaboratory as PlannedLaboratory
    from normless_lab.sweeps.progress import LaboratoryListener as LaboratoryListener
    from normless_lab.sweeps.progress import SweepProgress as SweepProgress
    from normless_lab.sweeps.rates import RateGrid as RateGrid
    from normless_lab.sweeps.result_tables import SweepResult as SweepResult
    from normless_lab.sweeps.result_tables import further_points as further_points
    from normless_lab.sweeps.result_tables import needed_runs as needed_runs
    from normless_lab.sweeps.result_tables import sweep_result as sweep_result
    from normless_lab.sweeps.runs import KINDS as KINDS
    from normless_lab.sweeps.runs import METRICS as METRICS
    from normless_lab.sweeps.runs import OUTCOMES as OUTCOMES
    from normless_lab.sweeps.runs import Kind as Kind
    from normless_lab.sweeps.runs import RunOutcome as RunOutcome
    from normless_lab.sweeps.runs import RunRow as RunRow
    from normless_lab.sweeps.runs import kind_of as kind_of
    from normless_lab.sweeps.status import Prunable as Prunable
    from normless_lab.sweeps.status import SweepStatus as SweepStatus
    from normless_lab.sweeps.status import prunable as prunable
    from normless_lab.sweeps.status import prune as prune
    from normless_lab.sweeps.status import sweep_status as sweep_status
    from normless_lab.sweeps.store import RunState as RunState
    from normless_lab.sweeps.store import StateError as StateError
    from normless_lab.sweeps.study import RunFailedError as RunFailedError
    from normless_lab.sweeps.study import SweepObjective as SweepObjective
    from normless_lab.sweeps.study import sweep_study as sweep_study
    from normless_lab.sweeps.sweep import Point as Point
    from normless_lab.sweeps.sweep import Sweep as Sweep
    from normless_lab.sweeps.sweep import SweepError as SweepError
    from normless_lab.sweeps.sweep import axis_of as axis_of
    from normless_lab.sweeps.worker import finished_epochs as finished_epochs
    from normless_lab.sweeps.worker import is_locked as is_locked
    from normless_lab.sweeps.worker import machine as machine
    from normless_lab.sweeps.worker import versions as versions
    from normless_lab.train.settings import check_fields as check_fields
else:
    __getattr__, __dir__, __all__ = attach(__name__, __file__)
