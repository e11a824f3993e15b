"""Leave out the checks of torch's distributions in a recorded pass."""

from __future__ import annotations

from collections.abc import Iterator

from torch.distributions import Distribution

from normless.exclusive import borrowing


@borrowing
def unvalidated() -> Iterator[None]:
    """Let torch's distributions not check values, which decides nothing but whether a pass fails."""
    before = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        Distribution.set_default_validate_args(before)
