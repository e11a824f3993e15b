"""Does one class take the gradient, whatever the input?"""

from __future__ import annotations

from math import log

from normless.diagnosis.examination import Examination
from normless.diagnosis.finding import Check, Cure, Finding

NAME = "classes"
# One class for nine examples in ten, though at most half of them are of it, at a loss twice that of guessing.
PREDICTED, TRUE, TIMES_GUESSING = 0.9, 0.5, 2.0

_THEORY = (
    "∂L_b/∂z_j = p_bj - y_bj: a class with p near 1 for every input gets a gradient of one sign and size from all "
    "examples of other classes. Their sum grows with the batch and has nothing to do with the inputs, and it is what "
    "every layer below is updated by (Bjorck et al., section 3.2, figure 4 and appendix L)."
)


def check_classes(examination: Examination) -> Check:
    """Look at who is predicted, and at the gradient of each logit summed over the batch."""
    table = examination.classes
    if len(table) < 2 or not table["target_share"].notna().all():
        return Check(NAME, "the targets are no classes, or there is one", asked=False)
    guessing = log(len(table))
    favoured = table.loc[table["favoured"]].iloc[0]
    energy = table["bias_gradient"] ** 2
    share = float(energy[table["favoured"]].iloc[0] / energy.sum()) if energy.sum() else float("nan")
    summary = (
        f"loss {examination.value:.3g}, that of guessing among {len(table)} is {guessing:.3g}; class "
        f"{favoured['class']} is predicted for {favoured['predicted_share']:.0%} of the examples"
    )
    dominates = favoured["predicted_share"] >= PREDICTED and favoured["target_share"] <= TRUE
    if not (dominates and examination.value > TIMES_GUESSING * guessing):
        return Check(NAME, summary)
    finding = Finding(
        "dominant_class",
        min(0.7, 0.4 + (examination.value - guessing) / (10 * guessing)),
        f"One class takes {share:.0%} of the gradient: class {favoured['class']} is predicted for "
        f"{favoured['predicted_share']:.0%} of the examples, {favoured['target_share']:.0%} of which are of it.",
        {
            "class": int(favoured["class"]),
            "predicted_share": float(favoured["predicted_share"]),
            "target_share": float(favoured["target_share"]),
            "share_of_squared_logit_gradient": share,
            "agreement_of_its_gradients": float(favoured["agreement"]),
            "loss": examination.value,
            "loss_of_guessing": guessing,
        },
        tuple(filter(None, [examination.map.classifier])),
        _THEORY,
        Cure(
            "start the classifier at zero, so that all classes are equally likely, or keep the signal from growing: "
            "nl.convert(model, 'batch_norm + ZeroClassifier()', inputs) changes nothing else",
            examination.possible(("batch_norm + ZeroClassifier()", "fixup", "skipinit")),
        ),
    )
    return Check(NAME, summary, (finding,))
