"""The reference networks of the library."""

from __future__ import annotations

from gallery.row import adamw, entropy, row
from normless.models import dense, resnet_cifar, transformer, wide_resnet

BASIC = "blocks.{}: conv1 conv2"
WIDE = [f"{BASIC.format(b)}{' | shortcut' * (b in (2, 4))}" for b in range(6)]
HEAD = {"stem": "stem", "loss": entropy}
VECTORS = "randn(6, 12)"


@row("randn(6, 3, 8, 8)", WIDE, name="wide 16-1", roles="last: *.norm2; down: blocks.[24].norm1; other: *", **HEAD)
def wide() -> object:
    return wide_resnet(16, 1)


@row(
    "randn(6, 3, 8, 8)",
    [BASIC.format(b) for b in range(3)],
    name="cifar 8",
    odd="option A: zeros for new channels",
    roles="stem: norm; last: *.norm2; other: *.norm1",
    **HEAD,
)
def cifar() -> object:
    return resnet_cifar(8)


@row("randn(6, 1, 8, 8)", [f"{BASIC.format(b)} | shortcut" for b in range(3)], name="wide 10-2 gray", **HEAD)
def wide_gray() -> object:
    return wide_resnet(10, 2, in_channels=1)


ONE = {"count": (3, 0, 0), "refused": {"fixup": "needs m ≥ 2"}, "loss": entropy}


@row(VECTORS, None, 1, True, name="dense of one layer", **ONE)
@row(VECTORS, None, 2, True, name="dense of two layers", count=(3, 0, 0), loss=entropy)
@row(VECTORS, None, 2, False, name="linear of two layers", count=(3, 0, 0), odd="without an activation", loss=entropy)
def perceptron(layers: int, relu: bool) -> object:
    return dense(3, 40, in_features=12, relu=relu, branch_layers=layers)


def sublayers(part: str, layer: int, *names: str) -> list[str]:
    """The statements of a layer."""
    qkvo = "query key value output"
    inside = {
        "self": f"self_attention.attention: {qkvo}",
        "cross": f"cross_attention.attention: {qkvo}",
        "mlp": "feed_forward: linear1 linear2",
    }
    return [f"{part}.layers.{layer}.{inside[name]}" for name in names]


TRANSLATION = [
    *(stated for layer in range(2) for stated in sublayers("encoder", layer, "self", "mlp")),
    *sublayers("decoder", 0, "self", "cross", "mlp"),
]
TOKENS = "(randint(2, 50, (4, 7)), randint(2, 50, (4, 5)))"


@row(TOKENS, TRANSLATION, "pre", name="our pre-norm transformer", loss=entropy, optimizer=adamw)
@row(TOKENS, TRANSLATION, "post", name="our post-norm transformer", loss=entropy, optimizer=adamw)
def translation(norm: str) -> object:
    return transformer(50, 2, 16, 2, 24, norm=norm, dropout=0.1, decoder_layers=1)
