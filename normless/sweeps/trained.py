"""When a network counts as trained: by its gain over chance, relative to that of a control."""

from __future__ import annotations

from collections.abc import Mapping

# Of the control's gain over chance.
SHARE = 0.5


def trained_against(accuracy: float, control: float, chance: float) -> bool:
    """Whether a run has at least half of the control's gain over chance.

    accuracy − chance ≥ (control − chance) / 2, and control > chance: a control that learned nothing proves nothing.

    Args:
        accuracy: test accuracy of the run, 0..1; NaN where it has none.
        control: that of the same network as it is known to train, with batch normalization as a rule.
        chance: that of the best constant guess.
    """
    return control > chance and accuracy - chance >= SHARE * (control - chance)


def control_accuracy(controls: Mapping[int, float], depth: int, chance: float) -> float:
    """The control of a depth: the one of that depth, or the shallowest where that one failed.

    Args:
        controls: test accuracy (0..1) of the control at every depth.
        depth: one of them.
        chance: accuracy of the best constant guess.
    """
    shallowest, here = controls[min(controls)], controls[depth]
    return here if trained_against(here, shallowest, chance) else shallowest
