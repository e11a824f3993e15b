"""Tools for optimizers: by name, parameter groups by role, gradient clipping, steps during the backward pass."""

from normless.lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    __file__,
    [
        "OPTIMIZERS",
        "ParameterGroups",
        "adaptive_gradient_clipping",
        "clip_in_step",
        "make_optimizer",
        "recompute_blocks",
        "step_in_backward",
    ],
)
