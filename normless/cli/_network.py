"""Arguments for a network and its images, descriptions of its inputs, and text tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

from jsonargparse import ArgumentParser, Namespace

from normless.registry import EXTENSIONS

if TYPE_CHECKING:
    from rich.table import Table
    from torch import nn

    from normless.models._spec import Inputs, Shape

# The colours of the outcomes of runs on a terminal.
OUTCOME_COLOURS = {
    "running": "cyan",
    "trained": "green",
    "untrained": "yellow",
    "chance": "yellow",
    "diverged": "red",
    "failed": "magenta",
}
WIDTH = 100
# The largest image or batch: 2^28 floats are a gigabyte.
MOST_NUMBERS = 2**28
# Blanks between two columns of a table.
GAP = 2


def add_network_arguments(parser: ArgumentParser) -> None:
    """Add the model, the shape of its images and its number of classes."""
    group = parser.add_argument_group("network")
    group.add_argument(
        "model",
        type=str,
        help="normless:NAME, torchvision:NAME, timm:NAME or transformers:KIND (a sentence classifier), each with "
        "(key=value, …); transformers:FILE.json, or transformers:FOLDER of a checkpoint; FILE.py:FUNCTION that "
        "returns the network, or (network, inputs) with a tensor, a tuple or a dictionary of keyword arguments; "
        "FILE.py:NETWORK, a network; or the folder of a network that normless convert saved, or of a run of normless "
        "train",
    )
    group.add_argument(
        "--image",
        type=int,
        nargs=3,
        default=None,
        metavar=("CHANNELS", "HEIGHT", "WIDTH"),
        help="shape of its images; by default that of timm's configuration, 3 224 224 for torchvision, else 3 32 32",
    )
    group.add_argument("--classes", type=int, default=None, help="number of classes; by default that of the model")


def model_with_inputs(
    spec: str, *, classes: int | None = None, image_shape: Shape | None = None
) -> tuple[nn.Module, Inputs | None]:
    """Build a network by `build_with_inputs`, or load it from the folder of a saved network or a run."""
    import torch

    from normless.models._spec import build_with_inputs
    from normless.saving._network import load_with_inputs
    from normless.spec import holds_network

    if not holds_network(spec):
        return build_with_inputs(spec, classes=classes, image_shape=image_shape)
    if classes is not None:
        raise ValueError(f"The network in {spec} already has a number of classes; leave it out.")
    images = None if image_shape is None else torch.randn(2, *image_shape, generator=torch.Generator().manual_seed(0))
    return load_with_inputs(spec, example_inputs=images)


def model_for_data(spec: str, classes: int, image_shape: Shape) -> nn.Module:
    """Build a network fitted to a data set, or load that in a folder, which has its classes and shape."""
    from normless.spec import holds_network

    fitted = (None, None) if holds_network(spec) else (classes, image_shape)
    return model_with_inputs(spec, classes=fitted[0], image_shape=fitted[1])[0]


def original_text(spec: str, *, classes: int | None = None, image_shape: Shape | None = None) -> str:
    """Return the text that names a network before its conversion; of a folder, the text in its recipe or run."""
    from pathlib import Path

    from normless.models import fitted_spec
    from normless.saving import read_recipe
    from normless.spec import holds_network, is_run

    if not holds_network(spec):
        return fitted_spec(spec, classes=classes, image_shape=image_shape)
    text: str | None = EXTENSIONS["run_network"](Path(spec)).model if is_run(spec) else read_recipe(Path(spec)).model
    if text is None:
        raise ValueError(f"The recipe in {spec} does not name its network, so that a copy of it could not be loaded.")
    return text


def image_shape(namespace: Namespace) -> tuple[int, int, int] | None:
    """Check the value of ``--image``: three numbers above 0, or None."""
    if namespace.image is None:
        return None
    channels, height, width = namespace.image
    if min(channels, height, width) < 1 or channels * height * width > MOST_NUMBERS:
        raise ValueError(
            f"Expected --image to be three numbers above 0 of a product of at most {MOST_NUMBERS:,}, "
            f"got {channels} {height} {width}."
        )
    return channels, height, width


def shapes(inputs: Any) -> Any:
    """Replace every tensor in the inputs by its shape, and all other values by the names of their types."""
    if isinstance(inputs, dict):
        return {str(name): shapes(value) for name, value in inputs.items()}
    if isinstance(inputs, (tuple, list)):
        return [shapes(value) for value in inputs]
    return list(inputs.shape) if hasattr(inputs, "shape") else type(inputs).__name__


def in_words(inputs: Any) -> str:
    """Describe inputs: `input 2×3×224×224`, or each of several inputs with its name, if any."""
    if isinstance(inputs, dict):
        return ", ".join(f"{name} {_extent(value)}" for name, value in inputs.items())
    return f"input {', '.join(map(_extent, inputs)) if isinstance(inputs, tuple) else _extent(inputs)}"


def heading(model: str, scheme: str | None, inputs: Any, *words: str) -> str:
    """Return the network, the scheme and the inputs of a command as a line."""
    return ", ".join([model, *([f"converted by {scheme}"] if scheme else []), in_words(inputs), *words])


def _extent(value: Any) -> str:
    return "×".join(map(str, value.shape)) if hasattr(value, "shape") else type(value).__name__


def table(titles: Sequence[str], rows: Sequence[Sequence[Any]], *, right: tuple[int, ...] = ()) -> Table:
    """Make a text table without lines; the columns in `right` are numbers."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, GAP, 0, 0))
    for index, title in enumerate(titles):
        made.add_column(title, justify="right" if index in right else "left", overflow="fold")
    for row in rows:
        made.add_row(*row)
    return made


def terminal_width() -> int:
    """Return the number of columns of the terminal, or `WIDTH` without one."""
    return get_terminal_size((WIDTH, 24)).columns


def as_text(made: Table, width: int | None = None) -> str:
    """Format a table as lines without trailing blanks, by default in the width of the terminal."""
    from rich.console import Console

    console = Console(width=width or terminal_width(), highlight=False, markup=False, emoji=False)
    with console.capture() as capture:
        console.print(made)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def in_parts(titles: Sequence[str], rows: Sequence[Sequence[str]], *, right: tuple[int, ...] = ()) -> str:
    """Format a table; a table wider than the terminal is split into parts, with titles broken at underscores.

    Each part begins with the columns up to the last text column, which name the rows.
    """
    width, count = terminal_width(), len(titles)

    def extent(columns: Iterable[int]) -> int:
        texts = ([line for row in [titles, *rows] for line in row[i].splitlines()] for i in columns)
        return sum(GAP + max(map(len, lines), default=0) for lines in texts) - GAP

    if extent(range(count)) > width:
        titles = [title.replace("_", "_\n") for title in titles]
    names = tuple(range(max((i + 1 for i in range(count) if i not in right), default=0)))
    parts = [names]
    for i in range(len(names), count):
        if parts[-1] != names and extent((*parts[-1], i)) > width:
            parts.append(names)
        parts[-1] += (i,)
    texts = []
    for part in parts:
        heads, *lines = ([row[i] for i in part] for row in [titles, *rows])
        numbers = tuple(at for at, i in enumerate(part) if i in right)
        texts.append(as_text(table(heads, lines, right=numbers), width))
    return "\n\n".join(texts)
