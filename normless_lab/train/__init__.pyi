from ._command import TrainCommand as TrainCommand
from ._config import (
    ExamplesConfig as ExamplesConfig,
    Result as Result,
    RunConfig as RunConfig,
    TrainConfig as TrainConfig,
)
from ._execution import device_name as device_name
from ._image_task import ClassificationTask as ClassificationTask, ImageTask as ImageTask
from ._loggers import LOGGERS as LOGGERS
from ._objective import evaluate as evaluate
from ._pauses import StoppedError as StoppedError, TimeLimitError as TimeLimitError
from ._result import (
    WINDOW as WINDOW,
    EpochRow as EpochRow,
    Row as Row,
    RunResult as RunResult,
    TrainingResult as TrainingResult,
    chance_accuracy as chance_accuracy,
    finished_outcome as finished_outcome,
    versions_of as versions_of,
)
from ._schedules import rate_multiplier as rate_multiplier, step as step
from ._settings import (
    Fraction as Fraction,
    NonNegativeFloat as NonNegativeFloat,
    NonNegativeInt as NonNegativeInt,
    PositiveFloat as PositiveFloat,
    PositiveInt as PositiveInt,
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
from ._training_run import train as train, trained_network as trained_network
