from ._step import (
    StepBench as StepBench,
    measure_inference as measure_inference,
    measure_memory as measure_memory,
    measure_step as measure_step,
    seconds_in_turns as seconds_in_turns,
    timer_of as timer_of,
    training_step as training_step,
)
