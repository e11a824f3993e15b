"""Decay policies as text: named policies, groups of parameters, roles of γ, and patterns of names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

GAMMAS = ("gamma_last", "gamma_down", "gamma_stem", "gamma_other")
PARTS = ("hidden", "embedding", "head")
"""Parts of the weights, which are groups of their own if a policy names them; otherwise they decay as `weights`."""
GROUPS = ("weights", *PARTS, *GAMMAS, "gains", "layer_scale", "biases", "scalars", "temperatures", "rest")

POLICIES: Mapping[str, frozenset[str]] = {
    # The guidelines 1 to 4: decay weights, γ_last and γ_others; neither γ_down nor γ_0, nor β, biases and scalars.
    # They are about residual networks with batch norms; elsewhere no γ decays (`decays_of`).
    # The guidelines do not speak of the other groups. Gains and layer scales are multipliers, as scalars are: a decay
    # would pull a whole channel to zero, whatever its weights. In `rest`, tokens and positions are added to
    # activations, as biases are, and torch advises against a decay of PReLU's slopes.
    "guidelines": frozenset({"weights", "gamma_last", "gamma_other"}),
    # PyTorch's default: everything but temperatures, whose decay would undo what a softmax has learned.
    "all": frozenset(GROUPS) - {*PARTS, "temperatures"},
    # TensorFlow's practice: weights only.
    "weights": frozenset({"weights"}),
}

# The roles of a γ as the residual map names them.
SHORT: Mapping[str, str] = {name.removeprefix("gamma_"): name for name in GAMMAS}

Policy = str | Mapping[str, bool | float]


def decays_of(policy: Policy, weight_decay: float, *, batch_norms: bool = True) -> dict[str, float]:
    """Return the λ of every group and pattern that a policy names; all others do not decay.

    Args:
        policy: terms joined by ``+``, each a key of `POLICIES`, a name in `GROUPS`, a role of γ (``last``, ``down``,
            ``stem``, ``other``), or a pattern of parameters' names with a dot or an asterisk in it, such as
            ``*.feed_forward.norm.weight``; the columns of Kim et al., table 2, are ``weights``, ``weights+last`` and
            so on. Or a mapping from groups, roles and patterns to whether they decay, or to a λ of their own. A
            pattern precedes the groups; of several that match a name the last counts.
        weight_decay: λ.
        batch_norms: whether it is for a residual network whose norms are batch norms; elsewhere `guidelines` is
            `weights`.

    Raises:
        ValueError: there is no such policy, group or role, one is named twice, or a λ is negative.
    """
    if isinstance(policy, str):
        policy = _named_by(policy, batch_norms)
    unknown = sorted({*policy} - {*GROUPS} - {*SHORT} - {*patterns_of(policy)})
    if unknown:
        raise ValueError(
            f"There is no parameter group {', '.join(unknown)}; the groups are {', '.join(GROUPS)}, "
            f"and {', '.join(SHORT)} for those of γ."
        )
    decays: dict[str, float] = {}
    for key, decay in policy.items():
        name = SHORT.get(key, key)
        if name in decays:
            raise ValueError(f"The policy names the group {name} twice, once by its short name {key!r}: keep one.")
        decays[name] = weight_decay * decay if isinstance(decay, bool) else float(decay)
        if not decays[name] >= 0:
            raise ValueError(f"Expected decays of 0 or more, got {decay} for the group {name}.")
    return decays


def patterns_of(decays: Iterable[str]) -> list[str]:
    """Return the names in a policy that are patterns of parameter names."""
    return [name for name in decays if not set(".*?").isdisjoint(name)]


def _named_by(policy: str, batch_norms: bool) -> dict[str, bool]:
    """Return the groups and patterns that the terms of a policy name."""
    named: dict[str, bool] = {}
    terms = [term.strip() for term in policy.split("+")]
    for term in terms:
        names = POLICIES.get("weights" if term == "guidelines" and not batch_norms else term, {term})
        if not {*GROUPS, *SHORT, *patterns_of([term])} >= names:
            which = f"There is no decay policy {policy!r}" + (f": {term!r} is none" if len(terms) > 1 else "")
            raise ValueError(
                f"{which}; the policies are {', '.join(POLICIES)}, and what + joins of them, of the groups "
                f"{', '.join(GROUPS)}, of {', '.join(SHORT)} for those of γ, and of patterns of parameters' names, "
                "as in weights+last."
            )
        named |= {SHORT.get(name, name): True for name in names}
    return named
