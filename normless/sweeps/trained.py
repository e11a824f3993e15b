"""The criterion for a trained network: half of the control's gain over chance."""

from __future__ import annotations

from collections.abc import Mapping

# Of the control's gain over chance.
SHARE = 0.5


def trained_threshold(control: float, chance: float, share: float = SHARE) -> float:
    """The accuracy from which a network counts as trained: chance + share · (control − chance).

    Args:
        control: accuracy of a network known to train, usually with batch normalization, in any unit.
        chance: accuracy of the best constant guess, in the same unit.
        share: of the control's gain over chance.
    """
    return chance + share * (control - chance)


def trained_against(accuracy: float, control: float, chance: float) -> bool:
    """Whether a network reaches `trained_threshold`, and its control learned anything; NaN does not."""
    return control > chance and accuracy >= trained_threshold(control, chance)


def control_accuracy(controls: Mapping[int, float], depth: int, chance: float) -> float:
    """The control of a depth: that of the same depth, or the shallowest one if that did not train.

    Args:
        controls: test accuracy (0..1) of the control by depth.
        depth: one of them.
        chance: accuracy of the best constant guess.
    """
    shallowest, here = controls[min(controls)], controls[depth]
    return here if trained_against(here, shallowest, chance) else shallowest
