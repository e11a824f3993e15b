"""The quantities that are measured of each layer, and the limits beyond which they are findings."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class HealthQuantity:
    """A column of the table by layer.

    Attributes:
        words: its meaning, for figures.
        limit: the value from which a layer is a finding, or None.
        below: whether values at or below the limit are findings.
        log: whether a figure has a logarithmic axis.
    """

    words: str
    limit: float | None = None
    below: bool = False
    log: bool = False


# Shares of a layer's units from which they are findings, see docs/trained.md; fewer are advice.
DEAD, CLOSED, EQUAL = 0.25, 0.05, 0.01
# The share of an attention's rows with more than CERTAIN on one position, where p (1 - p) < 0.001 scales gradients.
PEAKED, CERTAIN = 0.8, 0.999
# The share of values at which the slope of a bounded activation is below 4 % (tanh) or 8 % (sigmoid) of the largest.
FLAT = 0.8
# Nats per channel between N(running mean, running variance) and N(mean, variance) of the data: 0.05 is a mean that is
# off by 0.32 deviations in all channels, or a running variance 1.6 times too large or 1.5 times too small.
MISFIT = 0.05
# The share of statistics with a variance below ABOUT · ε, where the norm returns √(v/(v + ε)) = 0.9 of a unit
# deviation.
NEAR_EPSILON, ABOUT = 0.2, 0.81 / 0.19
# The change of the output, relative to its deviation over examples, below which a branch does nothing, or could go.
IDLE, REMOVABLE = 1e-3, 0.02
# The floating-point operations that the passes without one part at a time may take, by which the first batch is cut,
# and the fewest examples that are left of it.
WORK, FEWEST = 3e11, 2
# A massive activation (Sun et al. 2024, section 2): magnitude, and its ratio to the median, "around 1,000" or more.
MASSIVE, OVER_MEDIAN = 100.0, 300.0
# An outlier feature (Dettmers et al. 2022, section 3): magnitude, share of layers, share of tokens. The scale of a
# stream is arbitrary, so there it must also be this many times the median.
OUTLIER, OF_LAYERS, OF_TOKENS, TIMES = 6.0, 0.25, 0.06, 20.0

QUANTITIES: dict[str, HealthQuantity] = {
    "dead": HealthQuantity("share of units that never vary", DEAD),
    "flat": HealthQuantity("share of values where the activation is flat", FLAT),
    "peaked": HealthQuantity("share of rows of attention on one position", PEAKED),
    "gamma_zero": HealthQuantity("share of channels with γ at zero", CLOSED),
    "misfit": HealthQuantity("running statistics to those of the data, nats", MISFIT, log=True),
    "near_eps": HealthQuantity(f"share of variances below {ABOUT:.1f} ε", NEAR_EPSILON),
    "equal": HealthQuantity("share of units equal to another, up to a factor", EQUAL),
    "ratio": HealthQuantity("branch / skip path", log=True),
    "removal": HealthQuantity("change of the output without the branch or layer", IDLE, below=True, log=True),
    "removal_loss": HealthQuantity("loss without the branch or layer, minus loss"),
    "largest": HealthQuantity("largest magnitude after the sum", MASSIVE, log=True),
    "over_median": HealthQuantity("largest magnitude / median", OVER_MEDIAN, log=True),
    "spread": HealthQuantity("coefficient of variation of the divisor"),
    "cost": HealthQuantity("change of the output with a constant divisor", log=True),
    "own_apart": HealthQuantity("difference from the reference's layer on the same inputs", IDLE, log=True),
    "apart": HealthQuantity("difference from what the reference's layer returns", log=True),
    "cost_loss": HealthQuantity("loss with a constant divisor, minus loss"),
}
