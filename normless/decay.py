"""Decay policies as text: named policies, groups of parameters, roles of γ, and patterns of names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

GAMMAS = ("gamma_last", "gamma_down", "gamma_stem", "gamma_other")
GROUPS = ("weights", *GAMMAS, "gains", "layer_scale", "biases", "scalars", "rest")

POLICIES: Mapping[str, frozenset[str]] = {
    # The guidelines 1 to 4: decay weights, γ_last and γ_others; neither γ_down nor γ_0, nor β, biases and scalars.
    # The guidelines do not speak of the other groups. Gains and layer scales are multipliers, as scalars are: a decay
    # would pull a whole channel to zero, whatever its weights. In `rest`, tokens and positions are added to
    # activations, as biases are, and torch advises against a decay of PReLU's slopes.
    "guidelines": frozenset({"weights", "gamma_last", "gamma_other"}),
    # PyTorch's default: everything.
    "all": frozenset(GROUPS),
    # TensorFlow's practice: weights only.
    "weights": frozenset({"weights"}),
}

# The roles of a γ as the residual map names them.
SHORT: Mapping[str, str] = {name.removeprefix("gamma_"): name for name in GAMMAS}

Policy = str | Mapping[str, bool | float]


@dataclass(frozen=True)
class Decays:
    """λ of everything that decays.

    Attributes:
        groups: λ by the name of a group; one that is not here does not decay.
        patterns: λ by a pattern of parameters' names, which precedes their group's; the last one that matches counts.
    """

    groups: Mapping[str, float]
    patterns: Mapping[str, float] = field(default_factory=dict)

    def pattern_of(self, name: str) -> str | None:
        """The last pattern that a parameter's qualified name matches, or None."""
        return next((one for one in reversed([*self.patterns]) if fnmatchcase(name, one)), None)


def decays_of(policy: Policy, weight_decay: float) -> Decays:
    """What a policy makes of one λ; what it does not name does not decay.

    Args:
        policy: terms joined by ``+``, each a key of `POLICIES`, a name in `GROUPS`, a role of γ (``last``, ``down``,
            ``stem``, ``other``), or a pattern of parameters' names with a dot or an asterisk in it, such as
            ``*.feed_forward.norm.weight``; the columns of Kim et al., table 2, are ``weights``, ``weights+last`` and
            so on. Or a mapping from groups, roles and patterns to whether they decay, or to a λ of their own.
        weight_decay: λ.

    Raises:
        ValueError: there is no such policy, group or role, one is named twice, or a λ is negative.
    """
    if isinstance(policy, str):
        policy = _named_by(policy)
    unknown = sorted(name for name in policy if name not in GROUPS and name not in SHORT and not _is_pattern(name))
    if unknown:
        raise ValueError(
            f"There is no parameter group {', '.join(unknown)}; the groups are {', '.join(GROUPS)}, "
            f"and {', '.join(SHORT)} for those of γ."
        )
    groups: dict[str, float] = {}
    patterns: dict[str, float] = {}
    for key, decay in policy.items():
        name = SHORT.get(key, key)
        if name in groups:
            raise ValueError(f"The policy names the group {name} twice, once by its short name {key!r}: keep one.")
        value = weight_decay * decay if isinstance(decay, bool) else float(decay)
        if not value >= 0:
            raise ValueError(f"A decay is not negative, got {decay} for the group {name}.")
        (patterns if _is_pattern(name) else groups)[name] = value
    return Decays(groups, patterns)


def _named_by(policy: str) -> dict[str, bool]:
    """The groups and patterns that the terms of a policy name."""
    named: dict[str, bool] = {}
    terms = [term.strip() for term in policy.split("+")]
    for term in terms:
        if term in POLICIES:
            named |= dict.fromkeys(POLICIES[term], True)
        elif term in GROUPS or term in SHORT or _is_pattern(term):
            named[SHORT.get(term, term)] = True
        else:
            which = f"There is no decay policy {policy!r}" + (f": {term!r} is none" if len(terms) > 1 else "")
            raise ValueError(
                f"{which}; the policies are {', '.join(POLICIES)}, and what + joins of them, of the groups "
                f"{', '.join(GROUPS)}, of {', '.join(SHORT)} for those of γ, and of patterns of parameters' names, "
                "as in weights+last."
            )
    return named


def _is_pattern(term: str) -> bool:
    return not set(".*?").isdisjoint(term)
