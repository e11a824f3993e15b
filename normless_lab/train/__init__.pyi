from ._command import TRAIN as TRAIN, TrainCommand as TrainCommand
from ._config import (
    ExamplesConfig as ExamplesConfig,
    Result as Result,
    RunConfig as RunConfig,
    TrainConfig as TrainConfig,
)
from ._directory import RunDirectory as RunDirectory, RunDirectoryError as RunDirectoryError
from ._image_task import ClassificationTask as ClassificationTask, ImageTask as ImageTask
from ._loggers import LOGGERS as LOGGERS, Logger as Logger
from ._objective import evaluate as evaluate
from ._pauses import StoppedError as StoppedError, TerminatedError as TerminatedError
from ._result import (
    WINDOW as WINDOW,
    EpochRow as EpochRow,
    Outcome as Outcome,
    Report as Report,
    Row as Row,
    RunResult as RunResult,
    TrainingResult as TrainingResult,
    chance_accuracy as chance_accuracy,
    finished_outcome as finished_outcome,
    versions_of as versions_of,
)
from ._run_listener import ProgressBar as ProgressBar, RunListener as RunListener, RunStart as RunStart
from ._schedules import SCHEDULES as SCHEDULES, rate_multiplier as rate_multiplier, set_rate as set_rate, step as step
from ._settings import (
    DecayPolicy as DecayPolicy,
    Device as Device,
    Fraction as Fraction,
    NonNegativeFloat as NonNegativeFloat,
    NonNegativeInt as NonNegativeInt,
    PositiveFloat as PositiveFloat,
    PositiveInt as PositiveInt,
    Precision as Precision,
    Schedule as Schedule,
    Settings as Settings,
    Text as Text,
)
from ._task import (
    TASKS as TASKS,
    EpochTraining as EpochTraining,
    Task as Task,
    check_logits as check_logits,
    groups_of as groups_of,
    saved_folder as saved_folder,
)
from ._training_run import network_and_data as network_and_data, train as train, trained_network as trained_network
