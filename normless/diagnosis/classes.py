"""A class that dominates the gradient of the logits."""

from __future__ import annotations

from math import log

from normless.diagnosis.examination import Examination
from normless.diagnosis.finding import Check, Finding

NAME = "classes"
# One class predicted for nine examples in ten, the target of half of them at most, at twice the loss of guessing.
PREDICTED, TRUE, TIMES_GUESSING = 0.9, 0.5, 2.0

_THEORY = (
    "∂L_b/∂z_j = p_bj - y_bj: a class with p near 1 for every input gets a gradient of one sign and size from all "
    "examples of other classes. Their sum grows with the batch, does not depend on the inputs, and dominates the "
    "update of every layer below (Bjorck et al., section 3.2, figure 4 and appendix L)."
)


def check_classes(examination: Examination) -> Check:
    """Look for a class that is predicted for most examples and dominates the gradient of the logits."""
    table, loss = examination.measured.logits, examination.measured.loss
    if len(table) < 2 or not table["target_share"].notna().all():
        return Check(NAME, "the targets are not indices of several classes", asked=False)
    guessing = log(len(table))
    favoured = table.loc[table["favoured"]].iloc[0]
    energy = table["bias_gradient"] ** 2
    share = float(energy[table["favoured"]].iloc[0] / energy.sum()) if energy.sum() else float("nan")
    summary = (
        f"loss {loss:.3g}, that of guessing among {len(table)} is {guessing:.3g}; class "
        f"{favoured['class']} is predicted for {favoured['predicted_share']:.0%} of the examples"
    )
    dominates = favoured["predicted_share"] >= PREDICTED and favoured["target_share"] <= TRUE
    if not (dominates and loss > TIMES_GUESSING * guessing):
        return Check(NAME, summary)
    finding = Finding(
        "dominant_class",
        min(0.7, 0.4 + (loss - guessing) / (10 * guessing)),
        f"One class receives {share:.0%} of the gradient: class {favoured['class']} is predicted for "
        f"{favoured['predicted_share']:.0%} of the examples and the target of {favoured['target_share']:.0%}.",
        {
            "class": int(favoured["class"]),
            "predicted_share": float(favoured["predicted_share"]),
            "target_share": float(favoured["target_share"]),
            "share_of_squared_logit_gradient": share,
            "agreement_of_its_gradients": float(favoured["agreement"]),
            "loss": loss,
            "loss_of_guessing": guessing,
        },
        tuple(filter(None, [examination.map.classifier])),
        _THEORY,
        examination.cure(
            "initialize the classifier to zero, so that all classes are equally likely, or stop the growth of the "
            "signal: nl.convert(model, 'batch_norm + ZeroClassifier()', inputs) changes the classifier only",
            *("batch_norm + ZeroClassifier()", "fixup", "skipinit"),
        ),
    )
    return Check(NAME, summary, (finding,))
