"""The protocol of an artefact's training: what every run that it asks for is configured with, aspect by aspect."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import log2
from pathlib import Path

from normless.spec import parse_call
from normless_lab.data import AUGMENTATIONS, Augmentation
from normless_lab.sweeps import RateGrid, Sweep, kind_of
from normless_lab.train import Settings
from normless_papers.artefact import Budget, Context, artefact_of
from normless_papers.kept_scale import as_printed

_DECAYS = {"weights": "matrices and kernels", "all": "every parameter"}


@dataclass(frozen=True)
class Asked:
    """A combination of settings that an artefact trains: its labels by axis, its configuration, and how often."""

    labels: Mapping[str, str]
    config: Settings
    sweep: Sweep
    rates: RateGrid
    metrics: Sequence[str]


@cache
def asked_by(name: str, budget: Budget = "paper") -> tuple[Asked, ...]:
    """Return what an artefact trains at a budget."""
    trainings = artefact_of(name).trainings(Context(budget, Path(), data_root="data"))
    asked = []
    for training in trainings.values():
        for sweep in training.sweeps:
            kind = kind_of(sweep.run).settings_class()
            for labels in sweep.combinations:
                rates = sweep.rates_of(labels)
                config = kind.from_dict(sweep.settings(labels) | {"rate": rates.rates[0], "seed": sweep.seed})
                named = {**sweep.named(labels), "sweep": sweep.name}
                asked.append(Asked(named, config, sweep, rates, training.metrics))
    return tuple(asked)


def _network(asked: Asked) -> str:
    return str(asked.config.to_dict()["model"]).removeprefix("normless:")


def _method(asked: Asked) -> str:
    values = asked.config.to_dict()
    dropout = values.get("dropout")
    return as_printed(str(values["scheme"])) + (f", dropout {dropout:g} before the classifier" if dropout else "")


def _augmentation(asked: Asked) -> str:
    values = asked.config.to_dict()
    if "flip" not in values:
        return "none"
    source = parse_call(values["data"])[0]
    chosen = {name: values[name] for name in ("crop", "flip", "cutout", "mixup") if values[name] is not None}
    own = replace(AUGMENTATIONS.get(source, Augmentation()), **chosen)
    parts = ["random crops of any size" if source in ("image_folder", "pets") else ""]
    parts += [f"padding by {own.crop} and random crops" if own.crop else "", "flips" if own.flip else ""]
    parts += [f"cutout of {own.cutout} pixels" if own.cutout else "", f"mixup {own.mixup:g}" if own.mixup else ""]
    return ", ".join(filter(None, parts)) or "none"


def _schedule(asked: Asked) -> str:
    values = asked.config.to_dict()
    doubled = ", doubled until a plateau" if values.get("epochs_until_plateau") else ""
    return f"{values['epochs']} epochs{doubled}, {values['schedule']}"


def _rates(asked: Asked) -> str:
    rates = asked.rates.rates
    exponents = [log2(rate) for rate in rates]
    texts = [
        f"2^{power:g}" if power.is_integer() else f"{rate:g}" for rate, power in zip(rates, exponents, strict=True)
    ]
    every_power = len(rates) > 2 and exponents == [exponents[0] + place for place in range(len(rates))]
    return f"{texts[0]} to {texts[-1]}" if every_power else ", ".join(texts)


def _batch(asked: Asked) -> str:
    values = asked.config.to_dict()
    if "batch_tokens" in values:
        return f"{values['batch_tokens']} tokens"
    micro = values["micro_batch_size"]
    return f"{values['batch_size']}" + (f", in passes of {micro}" if micro else "")


def _statistics(asked: Asked) -> str:
    values = asked.config.to_dict()
    if parse_call(values["scheme"].partition("+")[0])[0] != "batch_norm":
        return ""
    examples = values.get("ghost_batch_size") or values.get("micro_batch_size")
    return f"of {examples} examples" if examples else "of the whole batch"


def _optimizer(asked: Asked) -> str:
    values = asked.config.to_dict()
    if values.get("optimizer", "SGD") != "SGD":
        return str(values["optimizer"])
    if "momentum" in values:
        return f"SGD, {'Nesterov ' if values['nesterov'] else ''}momentum {values['momentum']:g}"
    return f"{'AdamW' if values['decoupled_decay'] else 'Adam'}, β {values['beta1']:g} and {values['beta2']:g}"


def _decay(asked: Asked) -> str:
    values = asked.config.to_dict()
    policy = values["decay_policy"]
    return f"{values['weight_decay']:g} on {_DECAYS.get(policy, policy)}" if values["weight_decay"] else "none"


def _scalars(asked: Asked) -> str:
    return f"{asked.config.to_dict()['scalar_rate_scale']:g} of the weights' rate"


def _warm_start(asked: Asked) -> str:
    values = asked.config.to_dict()
    if values.get("warm_start_epochs"):
        return f"epochs 1 to {values['warm_start_epochs']} at {values['warm_start_rate']:g}"
    for name, unit in (("warmup_epochs", "epochs"), ("warmup_steps", "steps"), ("warmup", "of the training")):
        if values.get(name):
            return f"linear over {values[name]} {unit}"
    return "none"


def _selection(asked: Asked) -> str:
    replicates, best, metrics = asked.sweep.replicates, asked.sweep.best, " / ".join(asked.metrics).replace("_", " ")
    runs = "1 run" if replicates == 1 else f"mean of {replicates} runs"
    mean = f"mean of the best {best} of {replicates} runs" if best < replicates else runs
    if len(asked.rates.rates) < 2:
        return mean
    more = f", up to {asked.rates.extensions} rates beyond an end that is best" if asked.rates.factor else ""
    return f"{mean}, rate with the best {metrics}{more}"


ASPECTS: Mapping[str, Callable[[Asked], str]] = {
    "network": _network,
    "method": _method,
    "data": lambda asked: str(asked.config.to_dict()["data"]),
    "augmentation": _augmentation,
    "schedule": _schedule,
    "warm start": _warm_start,
    "rates": _rates,
    "batch size": _batch,
    "batch statistics": _statistics,
    "optimizer": _optimizer,
    "L2": _decay,
    "scalars' rate": _scalars,
    "selection": _selection,
}


def protocol_of(name: str, budget: Budget = "paper") -> dict[str, str]:
    """Return what an artefact trains at a budget by aspect; where combinations differ, by the labels that decide."""
    asked = asked_by(name, budget)
    return {aspect: told([(each.labels, value(each)) for each in asked]) for aspect, value in ASPECTS.items()}


def told(cells: Sequence[tuple[Mapping[str, str], str]]) -> str:
    """Return the values of labelled combinations: one if all are equal, else each after the labels of an axis.

    Empty values, of what a combination does not have, are left out.
    """
    cells = [(labels, value) for labels, value in cells if value]
    values = list(dict.fromkeys(value for _, value in cells))
    if len(values) < 2:
        return "".join(values) or "–"
    for axis in cells[0][0]:
        # Of several sweeps at once, an axis that one does not have tells nothing of its values.
        if not all(axis in labels for labels, _ in cells):
            continue
        found = defaultdict[str, dict[str, None]](dict)
        for labels, value in cells:
            found[labels[axis]][value] = None
        if all(len(own) == 1 for own in found.values()):
            by_value = {value: [label for label, own in found.items() if value in own] for value in values}
            return _folded(by_value) or _listed(by_value)
    return "; ".join(values)


def _folded(by_value: Mapping[str, Sequence[str]]) -> str:
    """Return values that differ in their label alone, as in depth=16/100/1000; empty if they differ otherwise."""
    parts = [re.split(r"([\s,()=]+)", value) for value in by_value]
    if len({len(words) for words in parts}) > 1:
        return ""
    places = [place for place, words in enumerate(zip(*parts, strict=True)) if len(set(words)) > 1]
    if len(places) != 1 or [[words[places[0]]] for words in parts] != list(map(list, by_value.values())):
        return ""
    middle = "/".join(words[places[0]] for words in parts)
    return "".join([*parts[0][: places[0]], middle, *parts[0][places[0] + 1 :]])


def _listed(by_value: Mapping[str, Sequence[str]]) -> str:
    """Return the values after their labels, that of most labels last."""
    most = max(by_value, key=lambda value: len(by_value[value]))
    rest = len(by_value[most]) > 2
    texts = [
        value if list(labels) == [value] else f"{', '.join(labels)}: {value}"
        for value, labels in by_value.items()
        if not rest or value != most
    ]
    return "; ".join([*texts, f"others: {most}"] if rest else texts)
