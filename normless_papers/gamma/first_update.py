"""Figure 6: how far the direction of γ moves in the first step, against the size that γ starts with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from normless.models import build_model
from normless.plots import ROLE_INKS, Law, Plot
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import Check, Estimate, over_draws, within
from normless_papers.probes.gamma_rate import gamma_slopes, gamma_updates
from normless_papers.seeded_inputs import seeded, training_batch

ROLES = ("stem", "down", "other", "last")
NEAR = 0.2


def _figure_6_checks(slopes: Mapping[str, Estimate]) -> list[Check]:
    return [
        within(f"The slope is -2 ± 0.2 for γ_{role}.", slopes[role], -2 - NEAR, -2 + NEAR)
        for role in ("other", "last", "down", "stem")
    ]


@artefact("gamma/figure-6", basis="measurement", checks=_figure_6_checks)
def first_update(
    context: Context, *, model: str, data: str, examples: int, batches: int, scales: Sequence[float]
) -> Evidence:
    """log ‖Γ̂₁ - Γ̂₀‖ against log ‖Γ‖ for γ that starts at several sizes: a slope near -2."""
    found, updates = [], []
    for draw in range(batches):
        batch = training_batch(context, data, examples, epoch=draw)
        with seeded(context.seed + draw):
            network = build_model(model, classes=batch.classes, image_shape=tuple(batch.inputs.shape[1:]))  # type: ignore[arg-type]
        updates.append(gamma_updates(network, batch.inputs, batch.targets, scales=scales))
        found.append(gamma_slopes(updates[-1]).assign(draw=draw))
    slopes = pd.concat(found, ignore_index=True)
    alone = slopes[slopes["varied"] == slopes["role"]]
    together = slopes[(slopes["varied"] == "all") & (slopes["role"] == "all")]
    estimates = {role: over_draws(alone[alone["role"] == role]["slope"]) for role in ROLES}
    estimates["all at once"] = over_draws(together["slope"])
    rows = [
        {
            "quantity": "slope",
            "gamma": role,
            "slope": one.mean,
            "deviation": one.deviation,
            "n": one.n,
            "theory": -2.0,
        }
        for role, one in estimates.items()
    ]
    return Evidence(
        measured=pd.DataFrame(rows),
        facts=estimates,
        setup={
            "network": model,
            "inputs": batch.provenance,
            "batches": batches,
            "seeds": f"{context.seed} to {context.seed + batches - 1}",
            "gamma": f"1 times {', '.join(f'{scale:g}' for scale in scales)}",
            "rate": 1e-3,
        },
        on=("quantity",),
        draw=lambda: FIRST_STEPS(updates[0]),
        remarks=(
            "The paper does not say which layers it regresses over. The section is about γ_others, and the text adds "
            "that the analysis is applicable to γ of all four categories: each is varied by itself here, with a "
            "height of its own for every norm. The slope is -2 by theory for γ_others alone; γ_last and γ_down are "
            "in the stream, whose other γ stay. With the γ of the whole network at once it is "
            f"{estimates['all at once'].mean:.2f}, which is not asked.",
        ),
    )


def _relative_steps(updates: pd.DataFrame) -> pd.DataFrame:
    """Each role's γ varied by themselves: steps over that at the smallest factor."""
    shown = updates[updates["varied"] == updates["role"]].sort_values("scale")
    first = shown.groupby("layer", sort=False)["update"].transform("first")
    return shown.assign(relative=shown["update"] / first)


FIRST_STEPS = Plot(
    "lines",
    _relative_steps,
    x="scale",
    y="relative",
    by="role",
    name="γ {}",
    each="layer",
    summary=None,
    inks=ROLE_INKS,
    log="xy",
    laws=[Law("slope −2", lambda scale: (scale / scale.min()) ** -2)],
    names="legend",
    title="First step of γ's direction, one role's γ at a time",
    x_label="factor on γ",
    y_label="step, relative to that at the smallest factor",
)
