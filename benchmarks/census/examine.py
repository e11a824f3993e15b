"""One network of the census: mapped, converted and checked; everything that happened as one row."""

from __future__ import annotations

import random
import re
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import nn

import normless as nl
from benchmarks.census import checks, stated
from benchmarks.census.checks import Given
from benchmarks.census.networks import Network
from normless._internal.copying import copied
from normless.errors import NormlessError
from normless.residual import ResidualMap

LIBRARY = Path(nl.__file__).parent
SCHEMES = ("skipinit(alpha=1)", "skipinit", "fixup")
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-3}


@dataclass
class Row:
    """What happened with a network.

    `built`, `mapped`, `folded` (where there is a batch norm) and those of schemes are "yes", or an error
    as `outcome_of` writes it. Checks are "" where they were not made, "yes", or what is wrong. `norms_by_hand` are
    operators that may be norms and need not be. `stated` is a check of the map against what people have
    read in the source. Seconds are those of the second of two forward passes, of the map, and of skipinit(alpha=1).
    """

    package: str
    network: str
    seed: int
    mode: str = ""
    dtype: str = ""
    parameters: int = 0
    built: str = ""
    mapped: str = ""
    blocks: int = 0
    inner_blocks: int = 0
    norms: int = 0
    unresolved: str = ""
    stated: str = ""
    norms_before: str = ""
    skipinit_alpha_1: str = ""
    skipinit: str = ""
    fixup: str = ""
    folded: str = ""
    no_norms: str = ""
    norms_by_hand: str = ""
    inert: str = ""
    as_none: str = ""
    fold_equal: str = ""
    per_example: str = ""
    same_map: str = ""
    unchanged: str = ""
    forward_seconds: float = float("nan")
    map_seconds: float = float("nan")
    convert_seconds: float = float("nan")
    total_seconds: float = float("nan")


CHECKS = ("no_norms", "inert", "as_none", "fold_equal", "per_example", "same_map", "unchanged")


def outcome_of(error: BaseException) -> str:
    """An error as `refused CLASS: sentence`, or `raw CLASS: sentence [place]` if it was not raised on purpose."""
    # Without the folders of this machine.
    sentence = re.sub(r"[^\s(]*/site-packages/", "", " ".join(str(error).split()))[:600]
    if isinstance(error, NormlessError):
        return f"refused {type(error).__name__}: {sentence}"
    frames = [(Path(frame.filename), frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    places = [f" [{path.relative_to(LIBRARY)}:{line}]" for path, line in frames if path.is_relative_to(LIBRARY)]
    place = "".join(places[-1:])
    return f"raw {type(error).__name__}: {sentence}{place}"


def examine(network: Network, seed: int) -> Row:
    """Map, convert and check a network; errors become a part of the row."""
    start = perf_counter()
    row = Row(network.package, network.text, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        examination = _Examination(network, row, seed)
        try:
            examination.run()
        except Exception as error:
            # One in the census itself; the table shows it.
            row.built = row.built if row.built.startswith("raw") else f"raw in the census: {outcome_of(error)}"
    row.total_seconds = perf_counter() - start
    return row


class _Examination:
    def __init__(self, network: Network, row: Row, seed: int) -> None:
        self.network = network
        self.row = row
        self.seed = seed

    def run(self) -> None:
        if not self._build():
            return
        model, (inputs, kwargs) = self.model, self.given
        state = {name: value.detach().clone() for name, value in model.state_dict().items()}
        self.row.forward_seconds = self._forward_seconds()
        mapped = self._try("mapped", lambda: nl.residual_map(model, *inputs, **kwargs), "map_seconds")
        if mapped is not None:
            self.row.blocks, self.row.norms = mapped.depth, len(mapped.norms)
            self.row.inner_blocks = len(list(mapped.walk())) - mapped.depth
            self.row.unresolved = "; ".join(map(str, mapped.unresolved))[:600]
        statement = stated.statements(self.network.package).get(self.network.text)
        if statement is not None:
            self._check("stated", lambda: "; ".join(stated.differences(statement, mapped))[:2000])
        first, *others = SCHEMES
        opened = self._try(_column(first), lambda: nl.convert(model, first, *inputs, **kwargs), "convert_seconds")
        converted = {first: opened}
        for scheme in others:
            converted[scheme] = self._try(_column(scheme), partial(self._convert, scheme, mapped))
        if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules()):
            self._check_fold()
        if opened is not None and mapped is not None:
            self._check_conversion(opened, converted["skipinit"], mapped)
        self._check("unchanged", lambda: _unchanged(model, state))

    def _build(self) -> bool:
        """Build the network and its inputs; False if it does not run, which is a fault of the census' table."""
        row = self.row
        try:
            self.model = self.network.build(self.seed)
            self.given = Given(*self.network.arguments(self.seed))
            self.training: Given | None = Given(*self.network.arguments(self.seed, training=True))
            row.parameters = sum(one.numel() for one in self.model.parameters())
            checks.outputs(copied(self.model), self.given)
        except Exception as error:
            row.built = outcome_of(error)
            return False
        row.mode = "train"
        try:
            trained = copied(self.model).train()
            trained(*self.training.inputs, **self.training.kwargs)
        except Exception:
            self.training = None
        # A network is mapped as it was built, in training mode, where that takes the inputs of evaluation.
        if self.training is None or self.network.training is not None:
            row.mode = "eval"
        self.model.train(row.mode == "train")
        row.built = "yes"
        self._choose_dtype()
        row.norms_before, _ = checks.norms_left(copied(self.model), self.given, self.training)
        return True

    def _choose_dtype(self) -> None:
        """Checks run in float64 where the network does, with finite outputs."""
        self.dtype, self.exact = torch.float64, self.given.to(torch.float64)
        try:
            runs = all(one.isfinite().all() for one in checks.outputs(copied(self.model).double(), self.exact))
        except Exception:
            runs = False
        if not runs:
            self.dtype, self.exact = torch.float32, self.given
        self.used = checks.in_use(self.model).to(self.dtype)
        self.tolerance = TOLERANCES[self.dtype]
        self.row.dtype = str(self.dtype).removeprefix("torch.")

    def _forward_seconds(self) -> float:
        """The seconds of the second of two forward passes of a copy, in the mode in which the network is mapped."""
        model, (inputs, kwargs) = copied(self.model), self.given
        model(*inputs, **kwargs)
        start = perf_counter()
        model(*inputs, **kwargs)
        return perf_counter() - start

    def _convert(self, scheme: str, mapped: ResidualMap | None) -> nn.Module:
        return nl.convert(self.model, scheme, *self.given.inputs, residual_map=mapped, **self.given.kwargs)

    def _check_fold(self) -> None:
        folded = self._try("folded", lambda: nl.fold(self.used.eval(), *self.exact.inputs, **self.exact.kwargs))
        if folded is not None:
            # A deep network in use may be chaotic: then rounding alone exceeds the tolerance.
            allowed = max(self.tolerance, min(1e-3, 100 * checks.rounding(self.used, self.exact)))
            self._check("fold_equal", lambda: checks.equal(folded[0], self.used, self.exact, allowed))

    def _check_conversion(self, opened: nn.Module, closed: nn.Module | None, mapped: ResidualMap) -> None:
        inputs, kwargs = self.given
        self._check("no_norms", lambda: self._norms_left(opened))
        opened.train(self.model.training)
        self._check("same_map", lambda: checks.same_blocks(nl.residual_map(opened, *inputs, **kwargs), mapped))
        exact = copied(opened).to(self.dtype)
        if self.network.batched:
            self._check("per_example", lambda: self._per_example(exact))
        if closed is not None:
            inner = mapped.without_global_skips()
            zero = copied(closed).to(self.dtype)
            plain = copied(self.model).to(self.dtype)
            self._check("inert", lambda: checks.inert(zero, exact, plain, self.exact, inner))
        self._check("as_none", lambda: self._as_none(mapped))

    def _norms_left(self, opened: nn.Module) -> str:
        left, self.row.norms_by_hand = checks.norms_left(opened, self.given, self.training)
        return left

    def _per_example(self, exact: nn.Module) -> str:
        """Asked only of a network that computes each example by itself with its norms."""
        if checks.per_example(copied(self.model).to(self.dtype), self.exact, 1e3 * self.tolerance):
            return ""
        return checks.per_example(exact, self.exact, 1e3 * self.tolerance)

    def _as_none(self, mapped: ResidualMap) -> str:
        ours, theirs = (
            self._convert(f"{scheme}keep_scale=False)", mapped).to(self.dtype)
            for scheme in ("skipinit(alpha=1, ", "none(")
        )
        return checks.equal(ours, theirs, self.exact, self.tolerance)

    def _try(self, column: str, action: Callable[[], Any], seconds: str | None = None) -> Any:
        """The value of an action, or None; the column says what happened."""
        start = perf_counter()
        try:
            random.seed(self.seed)
            torch.manual_seed(self.seed)
            value = action()
        except Exception as error:
            setattr(self.row, column, outcome_of(error))
            return None
        if seconds is not None:
            setattr(self.row, seconds, perf_counter() - start)
        setattr(self.row, column, "yes")
        return value

    def _check(self, column: str, check: Callable[[], str]) -> None:
        try:
            setattr(self.row, column, check() or "yes")
        except Exception as error:
            setattr(self.row, column, outcome_of(error))


def _column(scheme: str) -> str:
    return scheme.replace("(alpha=1)", "_alpha_1")


def _unchanged(model: nn.Module, state: dict[str, torch.Tensor]) -> str:
    """Mapping and converting must leave the original as it was."""
    after = model.state_dict()
    names = [
        name
        for name in state
        if name not in after or not torch.equal(after[name].nan_to_num(), state[name].nan_to_num())
    ]
    names += sorted(after.keys() - state.keys())
    return f"{names[0]} and {len(names) - 1} more changed" if names else ""
