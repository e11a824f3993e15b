"""The table of commands: their lines in the main help, and the module of each.

Another distribution adds a command by an entry point of the group ``normless.commands`` that names a `Command`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

from normless.registry import Registry


@dataclass(frozen=True)
class Command:
    """One command: its line in the main help, its implementation and an example.

    The implementation is a module with ``add_arguments`` and ``run``, or ``MODULE:NAME`` of an object with them.
    A command of two words is one of a group, whose name is the first.
    """

    help: str
    module: str
    example: str

    def implementation(self) -> Any:
        """What has ``add_arguments`` and ``run``, imported now."""
        return resolve_name(self.module)


COMMANDS = Registry[Command]("command")
_OWN = {
    "demo": Command(
        "train networks of 16 to 400 layers with and without normalization: table, figures, page",
        "normless.cli.demo",
        "normless demo --depths 16 100 --epochs 2 --out normless-demo",
    ),
    "train": Command(
        "train one network, from YAML and flags; resumes after an interruption",
        "normless.train:TRAIN",
        'normless train --model "normless:wide_resnet(depth=100, width=1)" --scheme skipinit',
    ),
    "train-translation": Command(
        "train one encoder-decoder to translate, from YAML and flags; BLEU; resumes after an interruption",
        "normless.train:TRAIN_TRANSLATION",
        "normless train-translation --data grammar --scheme fixup",
    ),
    "train-text": Command(
        "train one transformer to classify sentences, from YAML and flags; resumes after an interruption",
        "normless.train:TRAIN_TEXT",
        "normless train-text --data sentiment --decay-policy weights+last",
    ),
    "list": Command(
        "list the schemes, edits, models, data sets, probes and artefacts, ours and those of other packages",
        "normless.cli.listing",
        "normless list schemes",
    ),
    "inspect": Command(
        "show the residual map of a network: its blocks and the roles of its normalizations",
        "normless.cli.inspect",
        "normless inspect torchvision:resnet50 --figure resnet50.svg",
    ),
    "convert": Command(
        "convert a network by a scheme and save it: weights as safetensors, and a JSON recipe",
        "normless.cli.convert",
        "normless convert torchvision:resnet50 --scheme fixup --out converted",
    ),
    "probe": Command(
        "measure a network on one batch: tables, and figures with the theory beside them",
        "normless.cli.probe",
        "normless probe torchvision:resnet50 --scheme none --out probed",
    ),
    "diagnose": Command(
        "find what keeps a network from training: evidence, theory, and the edit that cures it",
        "normless.cli.diagnose",
        "normless diagnose torchvision:resnet50 --scheme none --batch-size 8 --apply",
    ),
    "sweep run": Command(
        "carry out a set of runs from YAML, on this machine or on several; resumes after an interruption",
        "normless.cli.sweep:RUN",
        "normless sweep run depth.yaml --workers 2",
    ),
    "sweep status": Command(
        "show where a sweep stands: runs by outcome, runs in flight, errors",
        "normless.cli.sweep:STATUS",
        "normless sweep status depth.yaml",
    ),
    "sweep export": Command(
        "write the table of a sweep's finished runs, or of their epochs, as Parquet or CSV",
        "normless.cli.sweep:EXPORT",
        "normless sweep export depth.yaml runs.parquet",
    ),
    "sweep retry": Command(
        "carry out the failed runs of a sweep again",
        "normless.cli.sweep:RETRY",
        "normless sweep retry depth.yaml",
    ),
    "sweep prune": Command(
        "delete runs that no sweep references",
        "normless.cli.sweep:PRUNE",
        "normless sweep prune depth.yaml width.yaml --yes",
    ),
    "bench": Command(
        "measure speed and memory, each as a ratio to a baseline in the same run",
        "normless.bench.command",
        "normless bench step",
    ),
}
for _name, _command in _OWN.items():
    COMMANDS.register(_name)(_command)
