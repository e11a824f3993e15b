"""``normless diagnose MODEL``: find what keeps a network from training, or what is wrong with a trained one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jsonargparse import ArgumentParser, Namespace

from normless.cli._batch import add_batch_arguments, cross_entropy, subject_of
from normless.cli._names import check_names
from normless.cli._network import as_text, table
from normless.cli._output import add_json_flag, answer, working
from normless.cli._trained import add_trained_arguments, check_trained_arguments, health_of
from normless.registry import EXTENSIONS
from normless.spec import format_call

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from normless.cli._batch import NetworkAndBatch
    from normless.doctor import Diagnosis, Treatment

_MARKS = {"fine": "✓", "wrong": "✗", "advice": "!", "not asked": "–"}


def add_arguments(parser: ArgumentParser) -> None:
    """Add the network, the batch, the optimizer, `--apply`, and the arguments for trained networks."""
    add_batch_arguments(parser)
    group = parser.add_argument_group("optimizer")
    group.add_argument(
        "--optimizer",
        type=str,
        default=None,
        help='a class of torch.optim with its arguments, as in "AdamW(lr=1e-3, weight_decay=0.05)", or '
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
    parser.add_argument(
        "--strict", action="store_true", help="exit with 1 if anything is found; advice is not counted"
    )


def run(namespace: Namespace) -> int:
    """Diagnose the network; with `--strict`, findings are a failure of the command."""
    check_names(vars(namespace))
    check_trained_arguments(namespace)
    diagnosis: Diagnosis
    with working(namespace, f"diagnosing {namespace.model}"):
        if namespace.trained:
            diagnosis, facts, head = health_of(namespace)
            treatment = None
        else:
            subject = subject_of(namespace)
            diagnosis, treatment = _of_training(namespace, subject)
            facts, head = subject.facts(namespace), subject.heading(namespace)
    facts |= diagnosis.to_dict()
    shown = diagnosis.full(why=namespace.why) if namespace.full or namespace.why else str(diagnosis)
    text = f"{head}\n{shown}"
    if namespace.apply:
        facts["treatment"] = None if treatment is None else treatment.to_dict()
        what = "nothing to apply: no scheme repairs a finding" if treatment is None else _side_by_side(treatment)
        text += f"\n\n{what}"
    if namespace.figure is not None:
        EXTENSIONS["map_figure"](diagnosis, namespace.model, namespace.figure)
        text += f"\n\nwrote {namespace.figure}"
    status = answer(namespace, facts, text)
    return status or int(namespace.strict and bool(diagnosis.findings))


def _of_training(namespace: Namespace, subject: NetworkAndBatch) -> tuple[Diagnosis, Treatment | None]:
    """Diagnose the training of the network, and with `--apply` treat it."""
    from normless.doctor._diagnose import diagnose
    from normless.doctor._treatment import treat

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


def _optimizer(namespace: Namespace, subject: NetworkAndBatch) -> Optimizer | None:
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
