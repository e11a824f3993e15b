"""Edits in front of the classifier."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from normless.edits.edit import EDITS, Edit, Surgery


@EDITS.register()
@dataclass(frozen=True)
class HeadDropout(Edit):
    """Dropout on the features that the classifier reads (ZeroInit, part 3).

    Args:
        probability: the share of features dropped; 0.6 by default, 0.2 in the papers on ImageNet.
    """

    probability: float = 0.6

    def apply(self, surgery: Surgery) -> None:
        """Put the dropout in front of the classifier."""
        path = surgery.classifier()
        if not 0 <= self.probability < 1:
            raise surgery.unsupported(path, f"a drop probability lies in [0, 1), got {self.probability}")
        classifier = surgery.affine(path)
        dropout = nn.Dropout(self.probability).train(classifier.training)
        classifier.before = dropout if classifier.before is None else nn.Sequential(classifier.before, dropout)
        surgery.record(path, f"dropout {self.probability:g} before it")
