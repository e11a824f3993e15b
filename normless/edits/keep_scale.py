"""The edit that gives the weights of a network without norms the scale that its norms gave."""

from __future__ import annotations

from typing import Literal

from normless.edits.edit import Edit, edit
from normless.edits.surgery import Surgery
from normless.signal import gains, steps_of

Weights = Literal["fresh", "all"]


@edit
class KeepScale(Edit):
    """Weights are scaled so that activations keep the second moment that norms gave; no data is read.

    Each weight layer that a norm reads gets the factor

        g = √((γ² + β²) / E[y²]),    E[y²] = mean over outputs of (m Σw + b)² + v Σw²,

    with its own weights w and bias b, and the mean m and variance v of its input as the norms before it gave them:
    for He's weights after a ReLU, m² + v = 1/2 and Σw² = 2, it is 1 (He et al. 2015, section 2.2). The skip path's
    second moment then stays about 1 where branches start at zero, doubles with every block where they are left as
    they are, and grows to e where they start at 1/√L (De & Smith, sections 3 and 4).

    A layer that begins a stream which norms read later (stem, projection, embeddings with positions, a class token)
    gets an output of second moment 1, as does a layer at the end of a branch that reads a norm. Classifier, gates,
    attention and the feed-forward layers of a transformer stay. A γ of 0 counts as 1. An embedding that makes the
    logits too is multiplied by √g, which keeps the scale of the logits and leaves the stream too small.

    Inputs are taken to have second moment 1, and elements to be independent, channel by channel. Of n neighbours
    under a pooling √n count as independent, of all positions under a mean all do. Zero padding counts at the size of
    the example inputs. Of gates, attention and products the mean squares are followed. Errors add up in a stream that
    passes many SiLU and gates: an EfficientNet-B0's logits are 0.45 to 47 times the normalized ones.

    Args:
        weights: `fresh` leaves a network whose norms have been trained as it is, `all` does not.
    """

    weights: Weights = "fresh"

    def apply(self, surgery: Surgery) -> None:
        if self.weights not in ("fresh", "all"):
            raise surgery.unsupported("", f"the weights are fresh or all, not {self.weights!r}")
        if surgery.removed.intersection(surgery.map.norms):
            raise surgery.unsupported("", "it reads the norms, and they are removed already; it comes before that")
        if not surgery.map.norms:
            surgery.record("", "left: no norm gave it a scale")
            return
        trained = surgery.trained_norm()
        steps, left = None, "its dataflow is not known; pass example inputs"
        if surgery.is_meta:
            left = "its weights have no values on the device meta"
        elif self.weights == "fresh" and trained is not None:
            left = f"{trained} is trained, and so are the weights; keep_scale='all' scales them nevertheless, and "
            left += "nl.fold takes norms into trained weights exactly"
        else:
            steps = steps_of(surgery.model, surgery.map)
        if steps is None:
            surgery.record("", f"left: {left}")
            return
        for gain in gains(surgery.model, steps):
            for name in gain.parameters:
                parameter = surgery.model.get_parameter(name).detach()
                (parameter if gain.rows is None else parameter.narrow(-2, *gain.rows)).mul_(gain.factor)
            what = "weight" if gain.rows is None else f"rows {gain.rows[0]} to {sum(gain.rows) - 1}"
            surgery.record(gain.path, f"{what} × {gain.factor:.4g}: {gain.why}")
