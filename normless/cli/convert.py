"""``normless convert MODEL --scheme SCHEME --out DIR``: a converted network as weights and a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import ArgumentParser, Namespace

from normless.cli.network import add_network_arguments, as_text, image_shape, in_words, shapes, table, terminal_width
from normless.output import add_json_flag, answer, only_json

if TYPE_CHECKING:
    from normless.edits import Change

# How many different changes of one edit are printed.
MOST_PRINTED = 3


def add_arguments(parser: ArgumentParser) -> None:
    """Add the model, the scheme, the folder and the seed."""
    add_network_arguments(parser)
    parser.add_argument("--scheme", type=str, required=True, help="as skipinit or fixup(gain=0.1)")
    parser.add_argument("--out", type=Path, required=True, help="folder for model.safetensors and recipe.json")
    parser.add_argument("--seed", type=int, default=0, help="of the network's first weights")
    add_json_flag(parser)


def run(namespace: Namespace) -> int:
    """Build, convert and save the network; print the changes and the result."""
    shape = image_shape(namespace)

    import torch

    from normless.arguments import arguments_of
    from normless.conversion import convert, plan
    from normless.models import fitted_spec
    from normless.residual import residual_map
    from normless.saving import model_with_inputs, save
    from normless.schemes import parse_scheme

    scheme = parse_scheme(namespace.scheme)
    with only_json(namespace):
        torch.manual_seed(namespace.seed)
        model, inputs = model_with_inputs(namespace.model, classes=namespace.classes, image_shape=shape)
        positional, keywords = arguments_of(inputs)
        found = residual_map(model, *positional, **keywords)
        changes = plan(model, scheme, *positional, residual_map=found, **keywords)
        net = convert(model, scheme, *positional, residual_map=found, **keywords)
        text = fitted_spec(namespace.model, classes=namespace.classes, image_shape=shape)
        files = save(net, namespace.out, model=text, example_inputs=inputs)
        norms = residual_map(net, *positional, **keywords).norms
    single = [name.rpartition(".")[2] for name, parameter in net.named_parameters() if parameter.numel() == 1]
    scalars = {kind: sum(map(single.count, names)) for kind, names in _SCALARS.items()}
    before, after = (sum(parameter.numel() for parameter in one.parameters()) for one in (model, net))
    facts = {"model": text, "scheme": scheme.text, "input": shapes(inputs), "changes": _by_edit(changes)}
    facts["parameters"] = {"before": before, "after": after}
    facts |= {name.replace(" ", "_"): number for name, number in scalars.items()}
    facts |= {"norms_left": list(norms), "files": [str(path) for path in files]}
    counted = ", ".join(f"{number} {name}" for name, number in scalars.items())
    lines = [
        f"{text}, converted by {scheme.text}, {in_words(inputs)}",
        "",
        as_text(_change_table(changes), terminal_width()),
        "",
        f"{before:,} parameters before, {after:,} after: {counted}",
        f"norms left: {', '.join(norms) or 'none'}",
        "",
        *(f"wrote {path}" for path in files),
    ]
    return answer(namespace, facts, "\n".join(lines))


_SCALARS = {"multipliers": ("multiplier",), "scalar biases": ("input_bias", "output_bias")}


def _by_edit(changes: tuple[Change, ...]) -> dict[str, dict[str, Any]]:
    """Of every edit, in order: how many changes it makes, and how often each of them in words."""
    edits: dict[str, dict[str, Any]] = {}
    for change in changes:
        edit = edits.setdefault(change.edit, {"count": 0, "what": {}})
        edit["count"] += 1
        edit["what"][change.what] = edit["what"].get(change.what, 0) + 1
    return edits


def _change_table(changes: tuple[Change, ...]) -> Any:
    """The edits, how many changes each makes, and the most frequent ones in words."""
    rows = []
    for edit, made in _by_edit(changes).items():
        often = sorted(made["what"].items(), key=lambda item: -item[1])
        words = [f"{number} × {what}" if number > 1 else what for what, number in often[:MOST_PRINTED]]
        rows.append((edit, f"{made['count']}", "; ".join(words + ["…"] * (len(often) > MOST_PRINTED))))
    return table(("edit", "changes", "what"), rows, right=(1,))
