from .step import StepBench as StepBench
from .step import measure_inference as measure_inference
from .step import measure_memory as measure_memory
from .step import measure_step as measure_step
from .step import seconds_in_turns as seconds_in_turns
from .step import timer_of as timer_of
from .step import training_step as training_step
