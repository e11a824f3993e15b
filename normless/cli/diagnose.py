"""``normless diagnose MODEL``: find what keeps a network from training, or what is wrong with a trained one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import ArgumentParser, Namespace

from normless.cli.baseline import Baseline
from normless.cli.batch import add_batch_arguments, cross_entropy, subject_of
from normless.cli.names import check_names
from normless.cli.network import as_text, table
from normless.cli.output import add_json_flag, answer, working
from normless.cli.sarif import sarif_log
from normless.cli.trained import add_trained_arguments, check_trained_arguments, health_of
from normless.registry import EXTENSIONS
from normless.spec import format_call

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from normless.cli.batch import Subject
    from normless.doctor import Diagnosis, Finding, Treatment

_MARKS = {"fine": "✓", "wrong": "✗", "advice": "!", "not asked": "–"}


def add_arguments(parser: ArgumentParser) -> None:
    """Add the network, the batch, the optimizer, `--apply`, and the arguments for trained networks."""
    add_batch_arguments(parser)
    group = parser.add_argument_group("optimizer")
    group.add_argument(
        "--optimizer",
        type=str,
        default=None,
        help='a class of torch.optim, Lion or Muon with its arguments, as in "AdamW(lr=1e-3, weight_decay=0.05)", or '
        "FILE.py:NAME; the next three options are those of SGD",
    )
    group.add_argument(
        "--rate", type=float, default=None, help="learning rate of SGD; by default the optimizer is not checked"
    )
    group.add_argument("--momentum", type=float, default=0.9, help="momentum of SGD")
    group.add_argument("--weight-decay", type=float, default=5e-4, help="weight decay of SGD")
    group.add_argument(
        "--decay-policy",
        type=str,
        default="guidelines",
        help="parameters that decay: guidelines, weights+last, …",
    )
    parser.add_argument(
        "--apply", action="store_true", help="convert by the scheme of the most severe finding and measure again"
    )
    parser.add_argument(
        "--investigate",
        action="store_true",
        help="make experiments on copies if the batch cannot be fitted and no cause is found",
    )
    add_trained_arguments(parser)
    parser.add_argument("--full", action="store_true", help="print all findings, and what every check measured")
    parser.add_argument("--why", action="store_true", help="print all of this and the theory of every finding")
    add_json_flag(parser)
    group = parser.add_argument_group("continuous integration")
    group.add_argument(
        "--strict", action="store_true", help="exit with 1 if anything is found; advice is not counted"
    )
    group.add_argument(
        "--baseline",
        type=Path | None,
        default=None,
        metavar="FILE",
        help="file of known findings, which --strict accepts",
    )
    group.add_argument(
        "--write-baseline", action="store_true", help="write the findings of this network to the file of --baseline"
    )
    group.add_argument(
        "--sarif", type=Path | None, default=None, metavar="FILE", help="write findings and advice as SARIF 2.1.0"
    )


def run(namespace: Namespace) -> int:
    """Diagnose the network; with `--strict`, findings that are not in the baseline are a failure of the command."""
    check_names(vars(namespace))
    check_trained_arguments(namespace)
    baseline = _baseline(namespace)
    diagnosis: Diagnosis
    with working(namespace, f"diagnosing {namespace.model}"):
        if namespace.trained:
            diagnosis, facts, head = health_of(namespace)
            scheme, treatment = None, None
        else:
            subject = subject_of(namespace)
            diagnosis, treatment = _of_training(namespace, subject)
            facts, head, scheme = subject.facts(namespace), subject.heading(namespace), subject.scheme
    facts |= diagnosis.to_dict()
    shown = diagnosis.full(why=namespace.why) if namespace.full or namespace.why else str(diagnosis)
    text = f"{head}\n{shown}"
    if namespace.apply:
        facts["treatment"] = None if treatment is None else treatment.to_dict()
        what = "nothing to apply: no scheme repairs a finding" if treatment is None else _side_by_side(treatment)
        text += f"\n\n{what}"
    known: tuple[Finding, ...] | None = None
    if baseline is not None:
        if namespace.write_baseline:
            baseline = baseline.written(diagnosis.findings)
        known, gone = baseline.known(diagnosis.findings), baseline.gone(diagnosis.findings)
        counts = {"known": len(known), "new": len(diagnosis.findings) - len(known), "gone": gone}
        facts["baseline"] = {"file": str(baseline.file)} | counts
        text += f"\n\nbaseline {baseline.file}: {', '.join(f'{count} {what}' for what, count in counts.items())}"
    if namespace.figure is not None:
        EXTENSIONS["map_figure"](diagnosis, namespace.model, namespace.figure)
        text += f"\n\nwrote {namespace.figure}"
    if namespace.sarif is not None:
        _write_sarif(namespace.sarif, sarif_log(namespace.model, scheme, diagnosis, known))
        text += f"\n\nwrote {namespace.sarif}"
    status = answer(namespace, facts, text)
    return status or int(namespace.strict and len(diagnosis.findings) > len(known or ()))


def _of_training(namespace: Namespace, subject: Subject) -> tuple[Diagnosis, Treatment | None]:
    """Diagnose the training of the network, and with `--apply` treat it."""
    from normless.doctor import diagnose, treat

    optimizer = _optimizer(namespace, subject)
    diagnosis = diagnose(
        subject.network,
        subject.batch,
        loss=cross_entropy,
        optimizer=optimizer,
        residual_map=subject.map,
        investigate=namespace.investigate or None,
    )
    if not namespace.apply or diagnosis.scheme is None:
        return diagnosis, None
    return diagnosis, treat(
        subject.network, subject.batch, diagnosis, original=subject.original, loss=cross_entropy, optimizer=optimizer
    )


def _baseline(namespace: Namespace) -> Baseline | None:
    """Read the known findings of the network before it is built, or return None without `--baseline`."""
    if namespace.baseline is None:
        if namespace.write_baseline:
            raise ValueError("Expected --baseline FILE with --write-baseline: the file to write.")
        return None
    network = f"{namespace.model} converted by {namespace.scheme}" if namespace.scheme else namespace.model
    network += ", trained" if namespace.trained else ""
    return Baseline.read(namespace.baseline, network, may_be_missing=namespace.write_baseline)


def _write_sarif(path: Path, log: Any) -> None:
    from normless.saving import replaced

    with replaced(path) as part:
        part.write_text(json.dumps(log, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")


def _optimizer(namespace: Namespace, subject: Subject) -> Optimizer | None:
    """Build the optimizer on the groups of the decay policy, or return None if there is none."""
    if namespace.optimizer is not None and namespace.rate is not None:
        raise ValueError("Expected --optimizer or --rate, got both; write SGD(lr=…) as --optimizer.")
    if namespace.optimizer is None and namespace.rate is None:
        return None
    of_sgd = {"lr": namespace.rate, "momentum": namespace.momentum, "weight_decay": namespace.weight_decay}
    from normless.optim import make_optimizer

    return make_optimizer(
        namespace.optimizer or format_call("SGD", of_sgd),
        subject.network,
        policy=namespace.decay_policy,
        residual_map=subject.map,
    )


def _side_by_side(treatment: Treatment) -> str:
    """Format all checks before and after, and the remaining findings."""
    rows = [
        (row["check"], *(f"{_MARKS[row[f'verdict_{when}']]} {row[when]}" for when in ("before", "after")))
        for row in treatment.table.to_dict(orient="records")
    ]
    text = as_text(table(("check", "before", f"after {treatment.scheme}"), rows))
    return f"{text}\n\nafter {treatment.scheme}: {treatment.after.verdict}"
