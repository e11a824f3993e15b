"""One training run: its configuration, the loop, its files and its result.

The names below are imported on first use, so that the command line can show its help without importing torch.
"""

from normless.extras import require_extra
from normless.lazy import attach

require_extra("lab", "Training", "lightning_fabric", "pydantic", "yaml", "docstring_parser", "filelock")

__getattr__, __dir__, __all__ = attach(
    __name__,
    __file__,
    [
        "ImageTask",
        "LOGGERS",
        "Row",
        "TASKS",
        "Task",
        "TrainCommand",
        "TrainConfig",
        "TrainingResult",
        "evaluate",
        "train",
    ],
)
