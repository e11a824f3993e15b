"""Units of a layer that every step keeps equal."""

from torch import Tensor

# Rows of a gradient count as equal if they differ by less than this share of its largest element.
EQUAL = 1e-3


def has_equal_rows(parameter: Tensor) -> bool:
    """Whether the units of a weight have equal values and equal gradients, so that every step keeps them equal."""
    gradient = parameter.grad
    if gradient is None or gradient.is_sparse or parameter.dim() < 2 or len(parameter) < 2 or parameter.is_complex():
        return False
    if not bool((parameter == parameter[:1]).all()):
        return False
    largest = float(gradient.abs().max())
    return 0 < largest < float("inf") and float((gradient - gradient[:1]).abs().max()) <= EQUAL * largest
