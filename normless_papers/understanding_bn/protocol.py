"""Networks, schemes and optimizer of Bjorck et al. (section 1.2, appendix B); `budgets.yaml` has their training."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

DEPTH = 110
FIRST_EPOCHS = 165

OPTIMIZER = "SGD, momentum 0.9, weight decay 5e-4 on every parameter"
"""What takes single steps, in words."""

# "For initialization, we use the Xavier-scheme [10]" (appendix B), with norms and without.
_XAVIER = " + Reinitialize(kind='xavier')"
SCHEMES: Mapping[str, str] = MappingProxyType(
    {
        "none": "xavier",
        "batch norm": "batch_norm(initialization='xavier')",
        "batch norm on top": f"only_top_norm{_XAVIER}",
        "alternating": f"alternating_batch_norm{_XAVIER}",
    }
)

PARTS = ("gamma", "beta", "mu", "sigma2")
SUBSETS: tuple[tuple[str, ...], ...] = (
    ("gamma", "beta", "mu", "sigma2"),
    ("gamma", "mu", "sigma2"),
    ("beta", "mu", "sigma2"),
    ("mu", "sigma2"),
    ("sigma2",),
    ("mu",),
    (),
)
"""The subsets of batch norm's parts in table 2."""


def parts_text(parts: tuple[str, ...]) -> str:
    """A subset as the published tables have it as text: gamma, beta, mu, sigma2."""
    return ", ".join(parts)


def parts_scheme(parts: tuple[str, ...]) -> str:
    """The scheme that keeps some of batch norm's parts, with Xavier's weights."""
    if not parts:
        return SCHEMES["none"]
    if parts == PARTS:
        return SCHEMES["batch norm"]
    names = {"mean": "mu", "variance": "sigma2", "gamma": "gamma", "beta": "beta"}
    arguments = ", ".join(f"{name}={part in parts}" for name, part in names.items())
    return f"partial_batch_norm({arguments}){_XAVIER}"
