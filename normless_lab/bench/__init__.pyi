from ._step import seconds_in_turns as seconds_in_turns, timer_of as timer_of, training_step as training_step
