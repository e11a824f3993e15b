"""``normless convert MODEL --scheme SCHEME --out DIR``: save a converted network as weights and a recipe."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import ArgumentParser, Namespace

from normless.cli._names import check_names
from normless.cli._network import (
    add_network_arguments,
    as_text,
    heading,
    image_shape,
    model_with_inputs,
    original_text,
    shapes,
    table,
)
from normless.cli._output import add_json_flag, answer, working
from normless.registry import EXTENSIONS

if TYPE_CHECKING:
    from torch import nn

    from normless._convert_trained import TrainedReport
    from normless.conversion import Plan
    from normless.residual import ResidualMap
    from normless.schemes import Scheme

# The number of different changes of an edit to print.
MOST_PRINTED = 3


def add_arguments(parser: ArgumentParser) -> None:
    """Add the model, the scheme, the folder and the seed."""
    add_network_arguments(parser)
    parser.add_argument("--scheme", type=str, default=None, help="for example skipinit or fixup(gain=0.1)")
    parser.add_argument(
        "--only", type=str, nargs="*", default=[], help="convert only the parts at or under these modules or blocks"
    )
    group = parser.add_argument_group("trained networks")
    group.add_argument(
        "--trained",
        type=str,
        default=None,
        metavar="DATA",
        help="the network is trained: keep its function, by statistics on training examples of a data set, such as "
        "digits; `inputs` are those that FILE.py:FUNCTION returns",
    )
    group.add_argument("--examples", type=int, default=256, help="training examples for --trained")
    parser.add_argument("--out", type=Path, default=None, help="folder for model.safetensors and recipe.json")
    parser.add_argument("--overwrite", action="store_true", help="replace the files in the folder")
    parser.add_argument("--seed", type=int, default=0, help="seed of the initial weights")
    parser.add_argument(
        "--seal",
        action="store_true",
        help="only accept the edited recipe of a saved network, whose folder is the MODEL",
    )
    add_json_flag(parser)


def run(namespace: Namespace) -> int:
    """Build, convert and save the network; print the changes and the result. With ``--seal`` only seal a recipe."""
    if namespace.seal:
        return _sealed(namespace)
    missing = [f"--{name}" for name in ("scheme", "out") if getattr(namespace, name) is None]
    if missing:
        raise ValueError(f"Expected {' and '.join(missing)}; see normless convert --help.")
    check_names(vars(namespace))
    shape = image_shape(namespace)
    if namespace.out.is_dir() and any(namespace.out.iterdir()) and not namespace.overwrite:
        raise ValueError(
            f"There are files in {namespace.out}: pass another folder as --out, or pass --overwrite to replace the "
            "network that is saved there."
        )

    with working(namespace, f"converting {namespace.model}"):
        import torch

        from normless import schemes
        from normless._internal.arguments import arguments_of
        from normless.residual import residual_map
        from normless.saving._network import save

        scheme = schemes.scheme(namespace.scheme)
        scheme = scheme.within(*namespace.only) if namespace.only else scheme
        torch.manual_seed(namespace.seed)
        model, inputs = model_with_inputs(namespace.model, classes=namespace.classes, image_shape=shape)
        positional, keywords = arguments_of(inputs)
        blocks = residual_map(model, *positional, **keywords)
        net, changes, report = _converted(namespace, model, scheme, inputs, blocks)
        text = original_text(namespace.model, classes=namespace.classes, image_shape=shape)
        files = save(net, namespace.out, model=text, example_inputs=inputs)
        norms = residual_map(net, *positional, **keywords).norms
    scalars = Counter(name.rpartition(".")[2] for name, parameter in net.named_parameters() if parameter.numel() == 1)
    multipliers, biases = scalars["multiplier"], scalars["input_bias"] + scalars["output_bias"]
    before, after = (sum(parameter.numel() for parameter in network.parameters()) for network in (model, net))
    edits: dict[str, Counter[str]] = {}
    for change in changes:
        edits.setdefault(change.edit, Counter())[change.what] += 1
    rows = [(edit, f"{counts.total()}", _most_frequent(counts)) for edit, counts in edits.items()]
    facts: dict[str, Any] = {"model": text, "scheme": scheme.text, "input": shapes(inputs)}
    facts["changes"] = {edit: {"count": counts.total(), "what": counts} for edit, counts in edits.items()}
    facts["parameters"] = {"before": before, "after": after}
    facts |= {"multipliers": multipliers, "scalar_biases": biases}
    facts |= {"norms_left": list(norms), "files": [str(path) for path in files]}
    if report is not None:
        facts["trained"] = asdict(report)
    lines = [
        heading(text, scheme.text, inputs),
        "",
        as_text(table(("edit", "changes", "what"), rows, right=(1,))),
        "",
        f"{before:,} parameters before, {after:,} after: {multipliers} multipliers, {biases} scalar biases",
        f"norms left: {', '.join(norms) or 'none'}",
        *([] if report is None else ["", str(report)]),
        "",
        *(f"wrote {path}" for path in files),
    ]
    return answer(namespace, facts, "\n".join(lines))


def _sealed(namespace: Namespace) -> int:
    """Accept the edited recipe of a saved network."""
    from normless.saving._folder import seal

    sealed = seal(namespace.model)
    return answer(namespace, {"sealed": str(sealed)}, f"sealed {sealed}")


def _converted(
    namespace: Namespace, model: nn.Module, scheme: Scheme, inputs: Any, blocks: ResidualMap
) -> tuple[nn.Module, Plan, TrainedReport | None]:
    """Convert the network; return it with the changes and, of a trained network, the report."""
    from normless._convert_trained import convert_trained
    from normless._internal.arguments import arguments_of
    from normless.conversion import CONVERSION, convert, plan

    if namespace.trained is not None:
        kept, report = convert_trained(model, scheme, _batch(namespace, inputs), residual_map=blocks)
        return kept, getattr(kept, CONVERSION).plan, report
    positional, keywords = arguments_of(inputs)
    changes = plan(model, scheme, *positional, residual_map=blocks, **keywords)
    return convert(model, scheme, *positional, residual_map=blocks, **keywords), changes, None


def _batch(namespace: Namespace, inputs: Any) -> Any:
    """Return the calibration batch for ``--trained``."""
    if namespace.examples < 1:
        raise ValueError(f"Expected --examples to be 1 or more, got {namespace.examples}.")
    if namespace.trained == "inputs":
        return inputs
    images, *_ = EXTENSIONS["training_batch"](namespace.trained, None, namespace.examples, namespace.seed)
    return images


def _most_frequent(counts: Counter[str]) -> str:
    """Return the most frequent changes of an edit."""
    words = [f"{number} × {what}" if number > 1 else what for what, number in counts.most_common(MOST_PRINTED)]
    return "; ".join(words + ["…"] * (len(counts) > MOST_PRINTED))
