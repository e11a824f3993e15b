"""One training run: its configuration, the loop, its files and its result.

The names below are imported on first use, so that the command line can show its help without importing torch.
"""

from typing import TYPE_CHECKING

from normless.extras import require_extra
from normless.lazy import attach

require_extra("lab", "Training", "lightning_fabric", "pydantic", "yaml", "docstring_parser", "filelock")

if TYPE_CHECKING:
    from normless_lab.train.classification import ClassificationTask as ClassificationTask
    from normless_lab.train.command import TRAIN as TRAIN
    from normless_lab.train.command import TrainCommand as TrainCommand
    from normless_lab.train.config import ExamplesConfig as ExamplesConfig
    from normless_lab.train.config import Result as Result
    from normless_lab.train.config import RunConfig as RunConfig
    from normless_lab.train.config import TrainConfig as TrainConfig
    from normless_lab.train.directory import RunDirectory as RunDirectory
    from normless_lab.train.directory import RunDirectoryError as RunDirectoryError
    from normless_lab.train.image_task import ImageTask as ImageTask
    from normless_lab.train.loggers import LOGGERS as LOGGERS
    from normless_lab.train.loggers import Logger as Logger
    from normless_lab.train.objective import evaluate as evaluate
    from normless_lab.train.pauses import StoppedError as StoppedError
    from normless_lab.train.pauses import TerminatedError as TerminatedError
    from normless_lab.train.result import WINDOW as WINDOW
    from normless_lab.train.result import EpochRow as EpochRow
    from normless_lab.train.result import Outcome as Outcome
    from normless_lab.train.result import Report as Report
    from normless_lab.train.result import Row as Row
    from normless_lab.train.result import RunResult as RunResult
    from normless_lab.train.result import TrainingResult as TrainingResult
    from normless_lab.train.result import chance_accuracy as chance_accuracy
    from normless_lab.train.result import finished_outcome as finished_outcome
    from normless_lab.train.result import versions_of as versions_of
    from normless_lab.train.run_listener import ProgressBar as ProgressBar
    from normless_lab.train.run_listener import RunListener as RunListener
    from normless_lab.train.run_listener import RunStart as RunStart
    from normless_lab.train.schedules import SCHEDULES as SCHEDULES
    from normless_lab.train.schedules import rate_multiplier as rate_multiplier
    from normless_lab.train.schedules import set_rate as set_rate
    from normless_lab.train.schedules import step as step
    from normless_lab.train.settings import DecayPolicy as DecayPolicy
    from normless_lab.train.settings import Device as Device
    from normless_lab.train.settings import Fraction as Fraction
    from normless_lab.train.settings import NonNegativeFloat as NonNegativeFloat
    from normless_lab.train.settings import NonNegativeInt as NonNegativeInt
    from normless_lab.train.settings import PositiveFloat as PositiveFloat
    from normless_lab.train.settings import PositiveInt as PositiveInt
    from normless_lab.train.settings import Precision as Precision
    from normless_lab.train.settings import Schedule as Schedule
    from normless_lab.train.settings import Settings as Settings
    from normless_lab.train.settings import Text as Text
    from normless_lab.train.task import TASKS as TASKS
    from normless_lab.train.task import EpochTraining as EpochTraining
    from normless_lab.train.task import Task as Task
    from normless_lab.train.task import check_logits as check_logits
    from normless_lab.train.task import groups_of as groups_of
    from normless_lab.train.task import saved_folder as saved_folder
    from normless_lab.train.training_run import network_and_data as network_and_data
    from normless_lab.train.training_run import train as train
    from normless_lab.train.training_run import trained_network as trained_network
else:
    __getattr__, __dir__, __all__ = attach(__name__, __file__)
