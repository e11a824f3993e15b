"""Errors of settings, data, sweeps and figures of the laboratory."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

import normless as nl
from errors.wrong import Wrong
from normless.errors import DataFormatError
from normless.models import wide_resnet
from normless_lab.cli._laboratory import job_parameters
from normless_lab.data import Augmentation, Split, in_memory, load_data
from normless_lab.sweeps import RateGrid, Sweep, axis_of
from normless_lab.sweeps._sweep import SweepError
from normless_lab.train import TrainConfig
from normless_lab.train._pauses import Pauses
from normless_lab.train._schedules import rate_multiplier, schedule_of

NAN, INF = float("nan"), float("inf")


def setting(name: str, *words: str, **values: Any) -> Wrong:
    """A setting of a run that is refused; the error names it."""
    return Wrong(f"setting {name}", lambda: TrainConfig(**values), ValueError, *words)


SETTINGS = [
    setting("batch size 0", "batch_size", "0", batch_size=0),
    setting("batch size 2.5", "batch_size", "integer", "2.5", batch_size=2.5),
    setting("micro-batch 129", "micro_batch_size", "128", "129", micro_batch_size=129),
    setting("ghosts of fixup", "ghost_batch_size=8", "batch_norm", ghost_batch_size=8, scheme="fixup"),
    setting("epochs 0", "epochs", "0", epochs=0),
    setting("rate 0", "rate should be greater than 0", rate=0),
    setting("schedule", "schedule: ", "'polynomial'", "hold_then_halve", "step", schedule="polynomial"),
    setting("schedule's shares", "schedule: ", "(0.8, 0.3)", schedule="step(at=(0.8, 0.3))"),
    setting("nesterov", "Nesterov", "momentum=0", nesterov=True, momentum=0.0),
    setting("warm-up of all", "warmup_epochs", "epochs=5", warmup_epochs=5, epochs=5),
    setting("decay policy", "'some'", "guidelines, all, weights", decay_policy="some"),
    setting("decay policy's term", "'weights+lost'", "'lost'", "weights+last", decay_policy="weights+lost"),
    setting("device", "device", "'auto', 'cpu' or 'cuda'", "'tpu'", device="tpu"),
    setting("devices 3", "batch_size=128", "devices=3", devices=3),
    setting("clip 0", "clip should be greater than 0", clip=0),
    setting("two mistakes", "epochs should be", "rate should be", epochs=0, rate=-1),
    setting("optimizer's rate twice", "rate is 0.1", "leave one", optimizer="AdamW(lr=1e-3)", rate=0.1),
    setting("no momentum", "AdamW", "momentum=0.9", optimizer="AdamW", momentum=0.9),
    setting("no decay in text", "weight_decay", optimizer="Rprop(weight_decay=1)"),
    setting("no decay", "Rprop", "weight_decay", optimizer="Rprop", weight_decay=0.1),
    setting("LBFGS", "LBFGS", "several times", optimizer="LBFGS"),
    setting("optimizer's rate", "rate should be greater than 0", optimizer="Adam(lr=-1.0)"),
    setting("optimizer misspelt", "'Adan'", "Did you mean", optimizer="Adan"),
    setting("compiled twice", "neither compiled nor recomputed", sync_batch_norm=True, compile=True),
    setting("compiled shards", "strategy='fsdp2'", "neither compiled nor recomputed", strategy="fsdp2", compile=True),
    Wrong(
        "unknown setting", lambda: TrainConfig.from_dict({"learning_rate": 1}), ValueError, "learning_rate", "model"
    ),
]


def of_text(call: Any, text: str, *words: str) -> Wrong:
    return Wrong(f"{getattr(call, '__name__', 'text')} {text!r}"[:80], partial(call, text), ValueError, *words)


SCHEDULES = [
    of_text(schedule_of, "step(at=(0.6, 0.3))", "at", "(0.6, 0.3)"),
    of_text(schedule_of, "step(by=1.0)", "by above 1"),
    of_text(schedule_of, "hold_then_halve(every=5)", "hold_then_halve takes times", "every"),
    Wrong("schedule", lambda: rate_multiplier("line", 0, 10), ValueError, "'line'", "hold_then_halve, step, cosine"),
    Wrong("before the first step", lambda: rate_multiplier("cosine", -1, 10), ValueError, "done=-1", "total=10"),
    *(
        of_text(lambda text: Pauses(checkpoint_every=text), text, "duration")
        for text in ("", "0s", "ten minutes", "0")
    ),
    of_text(lambda text: job_parameters([text]), "gpu", "NAME=VALUE"),
]


def augmented(name: str, **values: Any) -> Wrong:
    return Wrong(f"augmentation {values}", lambda: Augmentation(**values), ValueError, name)


def few(train: int, test: int, shift: int) -> Any:
    splits = (Split(torch.zeros(n, 1, 8, 8, dtype=torch.uint8), torch.arange(n) % 3 + shift) for n in (train, test))
    return in_memory("few", "mine", *splits, classes=3)


def batches(size: int = 10, **share: Any) -> Any:
    data = few(20, 7, 0)
    return data.train_batches(size, seed=0, epoch=0, augmentation=Augmentation(), device="cpu", **share)


DATA = [
    *(augmented("crop", crop=-1), augmented("cutout", cutout=-2), augmented("mixup", mixup=NAN)),
    Wrong("no training images", lambda: few(0, 8, 0), DataFormatError, "training part of few", "0 images"),
    Wrong("labels above", lambda: few(8, 8, 1), DataFormatError, "training part of few", "from 1 to 3", "0 to 2"),
    Wrong("no batch", lambda: batches(size=0), ValueError, "batch_size", "1"),
    Wrong("uneven shares", lambda: batches(rank=0, world_size=3), ValueError, "10", "3"),
    of_text(load_data, "mnist", "'mnist'", "digits, cifar10"),
    of_text(load_data, "gaussian(sides=3)", "sides", "image_shape, classes"),
    of_text(load_data, "digits(channels=0)", "channels=0"),
    of_text(load_data, "gaussian(image_shape=(8.5,))", "image_shape"),
    of_text(load_data, "gaussian(train=0)", "train"),
]


def small_sweep(**changes: Any) -> Sweep:
    axes = {"scheme": axis_of("scheme", ["none", "fixup"])}
    usual: dict[str, Any] = {"name": "small", "base": {}, "axes": axes, "rates": RateGrid((0.1,)), "replicates": 3}
    return Sweep(**{**usual, "best": 2, **changes})


def swept(name: str, *words: str, **changes: Any) -> Wrong:
    return Wrong(f"sweep of {name}", lambda: small_sweep(**changes), SweepError, *words)


def grid(name: str, *words: str, **settings: Any) -> Wrong:
    return Wrong(f"rates {name}", lambda: RateGrid(**settings), ValueError, *words)


SWEEPS = [
    grid("falling", "increasing order", rates=(0.2, 0.1)),
    grid("zero", "rates.0", "greater than 0", rates=(0.0, 0.1)),
    Wrong("rates below floats", lambda: RateGrid.from_value({"from": -(10**9), "to": 0}), ValueError, "2^-1000"),
    swept("a misspelt setting", "base sets 'epoch'", "Did you mean epochs", base={"epoch": 3}),
    swept("a rate", "base sets rate", base={"rate": 3}),
    swept("a label", "axes.scheme.x", "'schema'", "scheme", axes={"scheme": {"x": {"schema": "none"}}}),
    swept("an outcome", "called outcome", axes={"outcome": {"x": {}}}),
    swept("a seed", "axes.a.x sets seed", axes={"a": {"x": {"seed": 1}}}),
    swept("nothing", "no combination", axes={"a": {}}),
    swept("no epochs", "cannot be configured", "epochs", base={"epochs": 0}),
    swept("an axis left out", "exclude", "'width'", exclude=({"width": "3"},)),
    swept("a label left out", "exclude", "'lsuv'", exclude=({"scheme": "lsuv"},)),
    swept("nothing left out", "names no label", exclude=({},)),
    swept("too many best", "best 4 of 3", best=4),
]


def checked(*shape: int) -> nn.Module:
    network, images = wide_resnet(depth=10, width=1), torch.randn(4, 3, 8, 8)
    return nl.convert(network, "fixup", images, check_inputs=torch.randn(shape))


ERRORS = [
    *(*SETTINGS, *SCHEDULES, *DATA, *SWEEPS),
    Wrong("plot of a dict", lambda: nl.plot({}), ValueError, "nl.watch", "nl.diagnose_trained", "dict"),  # type: ignore[arg-type]
    Wrong(
        "checked channels",
        lambda: checked(2, 5, 8, 8),
        nl.errors.InputsError,
        "stem, a Conv2d",
        "takes 3 channels",
        "has 5",
    ),
    Wrong("checked axes", lambda: checked(2, 3), nl.errors.UnresolvedStructureError, "stem, a Conv2d", "[2, 3]"),
]
