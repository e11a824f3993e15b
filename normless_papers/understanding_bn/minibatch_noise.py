"""The noise of minibatch steps (equation 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normless.plots import Plot
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.probes import noise_per_example, per_example_gradients, sgd_noise_table, step_errors
from normless_papers.seeded_inputs import seeded
from normless_papers.stated_claims import Tests, decided
from normless_papers.understanding_bn.initializations import Initializations

_SQUARE, _BIAS = "E[||alpha grad f - alpha grad_SGD||^2]", "E[error term]"
_EXAMPLES = 5
_EXACT = 1e-9


@dataclass(frozen=True)
class StepNoise:
    """Squared errors of steps and their means, with predictions by the equation.

    Attributes:
        exact: over every minibatch of a tiny network: `batch_size`, `learning_rate`, `noise`, `predicted_noise` and
            `bias`, the length of the mean error.
        drawn: over minibatches drawn for a ResNet, as `sgd_noise_table`.
        depth: of the ResNet.
        draws: number of minibatches.
    """

    exact: pd.DataFrame
    drawn: pd.DataFrame
    depth: int
    draws: int


def _equation_2(facts: StepNoise) -> Tests:
    """Exactly over every minibatch of a tiny network, within the errors over those drawn for a ResNet."""
    exact, drawn = facts.exact, facts.drawn
    noise = exact.set_index(["batch_size", "learning_rate"])["noise"]
    off = (exact["noise"] / exact["predicted_noise"] - 1).abs().max()
    scaled = exact["bias"] / np.sqrt(exact["predicted_noise"])
    errors = (drawn["noise"] - drawn["predicted_noise"]).abs() / drawn["standard_error"]
    return {
        "Over all possible minibatches the squared error is exactly α²M/|B|, to 1e-9.": decided(
            off <= _EXACT, deviation=off
        ),
        "The step is unbiased: the mean error is 0, to 1e-9 of its root mean square.": decided(
            scaled.max() <= _EXACT, deviation=scaled.max()
        ),
        "Doubling the batch halves the noise, to 1e-9.": decided(
            abs(noise[1, 0.1] / noise[2, 0.1] - 2) <= _EXACT, ratio=noise[1, 0.1] / noise[2, 0.1]
        ),
        "Doubling the learning rate quadruples it, to 1e-9.": decided(
            abs(noise[2, 0.2] / noise[2, 0.1] - 4) <= _EXACT, ratio=noise[2, 0.2] / noise[2, 0.1]
        ),
        f"In a ResNet-{facts.depth} the mean over {facts.draws} minibatches is α²M/|B| within four standard "
        "errors.": decided((errors <= 4).all(), largest_in_standard_errors=errors.max()),
        "There the mean error is at most three times that expected of as many unbiased draws.": decided(
            (drawn["bias"] <= 3 * drawn["predicted_bias"]).all(),
            largest_ratio=(drawn["bias"] / drawn["predicted_bias"]).max(),
        ),
    }


@artefact("understanding-bn/equation-2", basis="formula", checks=_equation_2)
def step_noise(
    context: Context, *, data: str, depth: int, examples: int, batch_sizes: Sequence[int], draws: int
) -> Evidence:
    """Equation (2): the step of a minibatch is unbiased, its squared error is α²M/|B|."""
    exact = _every_minibatch(context.seed)
    setting = Initializations(context, data, examples, draws=1, depth=depth)
    (draw,) = setting.each(batch_norm=(False,))
    drawn = sgd_noise_table(
        draw.model,
        draw.inputs,
        draw.targets,
        F.cross_entropy,
        batch_sizes=batch_sizes,
        learning_rates=(0.1,),
        draws=draws,
        seed=context.seed,
    )
    both = pd.concat(
        [exact.assign(network="two layers, every minibatch"), drawn.assign(network=f"ResNet-{depth}, {draws} draws")]
    )
    return Evidence(
        _quantities(both),
        facts=StepNoise(exact, drawn, depth, draws),
        setup=setting.setup(
            learning_rates="0.1 and 0.2",
            exact=f"a tanh network of two layers in float64, {_EXAMPLES} examples, every minibatch with replacement",
            examples=examples,
            draws=draws,
        ),
        on=("quantity",),
        draw=lambda: NOISE(drawn),
        remarks=("In evaluation mode: with the batch's statistics there is no gradient of one example.",),
    )


def _every_minibatch(seed: int) -> pd.DataFrame:
    """Noise and bias over all minibatches of a tiny network, in float64."""
    network, inputs, targets = _tiny(seed)
    noise = noise_per_example(per_example_gradients(network, inputs, targets, F.cross_entropy))
    rows = []
    for size, rate in ((1, 0.1), (2, 0.1), (3, 0.1), (2, 0.2)):
        every = torch.tensor(list(product(range(_EXAMPLES), repeat=size)))
        errors = step_errors(network, inputs, targets, F.cross_entropy, every, rate)
        row = {"batch_size": size, "learning_rate": rate, "noise": errors.mean_square}
        rows.append(row | {"predicted_noise": rate**2 * noise / size, "bias": errors.bias, "predicted_bias": 0.0})
    return pd.DataFrame(rows)


def _tiny(seed: int) -> tuple[nn.Module, Tensor, Tensor]:
    with seeded(seed):
        network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()
        inputs = torch.randn(_EXAMPLES, 3, dtype=torch.float64)
        return network, inputs, torch.randint(3, (_EXAMPLES,))


def _quantities(both: pd.DataFrame) -> pd.DataFrame:
    """A row per network, batch size, rate and published quantity."""
    tables = []
    for quantity, measured, predicted in ((_SQUARE, "noise", "predicted_noise"), (_BIAS, "bias", "predicted_bias")):
        columns = ["network", "batch_size", "learning_rate", measured, predicted]
        table = both[columns].rename(columns={measured: "value", predicted: "predicted"})
        table.insert(0, "quantity", quantity)
        tables.append(table)
    return pd.concat(tables, ignore_index=True)


NOISE = Plot(
    "measured_on_predicted",
    x="batch_size",
    measured="noise",
    by="learning_rate",
    name="α = {:g}",
    log="xy",
    title="Noise of a minibatch step",
    x_label="minibatch size |B|",
    y_label="mean ‖step - α∇f‖²; line: α²M/|B|",
)
