"""Decay policies as text: named policies, groups of parameters, roles of γ, and patterns of names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

GAMMAS = ("gamma_last", "gamma_down", "gamma_stem", "gamma_other")
PARTS = ("hidden", "embedding", "head")
"""Parts of the weights; a part is a separate group if a policy names it, and otherwise belongs to `weights`."""
GROUPS = ("weights", *PARTS, *GAMMAS, "gains", "layer_scale", "biases", "scalars", "temperatures", "rest")

POLICIES: Mapping[str, frozenset[str]] = {
    # Guidelines 1 to 4: decay weights, γ_last and γ_others; do not decay γ_down, γ_0, β, biases and scalars. They
    # hold for residual networks with batch norms; elsewhere no γ decays (`decays_of`). The guidelines do not mention
    # other groups. Gains and layer scales are multipliers, like scalars: decay would shrink a channel to zero.
    # In `rest`, tokens and positions are added to activations, like biases, and torch advises against decaying
    # PReLU's slopes.
    "guidelines": frozenset({"weights", "gamma_last", "gamma_other"}),
    # PyTorch's default, without temperatures: their decay would flatten a learned softmax.
    "all": frozenset(GROUPS) - {*PARTS, "temperatures"},
    # TensorFlow's practice: weights only.
    "weights": frozenset({"weights"}),
}

# The groups of γ by their roles in the residual map.
SHORT: Mapping[str, str] = {name.removeprefix("gamma_"): name for name in GAMMAS}

Policy = str | Mapping[str, bool | float]


def decays_of(policy: Policy, weight_decay: float, *, batch_norms: bool = True) -> dict[str, float]:
    """Return the λ of every group and pattern that a policy names; all others do not decay.

    Args:
        policy: terms joined by ``+``, each a key of `POLICIES`, a name in `GROUPS`, a role of γ (``last``, ``down``,
            ``stem``, ``other``), or a pattern of parameters' names with a dot or an asterisk in it, such as
            ``*.feed_forward.norm.weight``; the columns of Kim et al., table 2, are ``weights``, ``weights+last`` and
            so on. Or a mapping from groups, roles and patterns to whether they decay, or to their λ. A pattern takes
            precedence over groups, and a later pattern over an earlier one.
        weight_decay: λ.
        batch_norms: whether the network is residual with batch norms; for other networks `guidelines` means
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
            f"and the roles of γ are {', '.join(SHORT)}."
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
            which = f"There is no decay policy {policy!r}" + (f": {term!r} is unknown" if len(terms) > 1 else "")
            raise ValueError(
                f"{which}; the policies are {', '.join(POLICIES)}, and what + joins of them, of the groups "
                f"{', '.join(GROUPS)}, of {', '.join(SHORT)} for those of γ, and of patterns of parameters' names, "
                "as in weights+last."
            )
        named |= {SHORT.get(name, name): True for name in names}
    return named
