"""``normless inspect MODEL``: the residual map of a network."""

from __future__ import annotations

import sys

from jsonargparse import ArgumentParser, Namespace

from normless.output import add_json_flag, print_json

SMALL_IMAGE = (3, 32, 32)
ZOO_IMAGE = (3, 224, 224)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the model, the shape of its images, and the form of the answer."""
    parser.add_argument(
        "model",
        type=str,
        help="normless:NAME, torchvision:NAME or timm:NAME, each with (key=value, …), or FILE.py:FUNCTION",
    )
    parser.add_argument(
        "--image",
        type=int,
        nargs=3,
        default=None,
        metavar=("CHANNELS", "HEIGHT", "WIDTH"),
        help="shape of its images; if left out, 3 224 224 for torchvision and timm and 3 32 32 for others",
    )
    parser.add_argument("--classes", type=int, default=None, help="number of classes; the model's own if left out")
    add_json_flag(parser)


def run(namespace: Namespace) -> int:
    """Build the network, read its map, print it."""
    import torch

    from normless import residual_map
    from normless.models.spec import build_model

    from_zoo = namespace.model.startswith(("torchvision:", "timm:"))
    shape = tuple(namespace.image or (ZOO_IMAGE if from_zoo else SMALL_IMAGE))
    if min(shape) < 1:
        raise ValueError(f"Expected --image to be three numbers above 0, got {' '.join(map(str, shape))}.")
    model = build_model(namespace.model, classes=namespace.classes, image_shape=shape)
    inputs = torch.zeros(2, *shape)
    found = residual_map(model, inputs)
    if namespace.json:
        print_json(found.to_dict())
    else:
        sys.stdout.write(f"{found}\n")
    return 0
