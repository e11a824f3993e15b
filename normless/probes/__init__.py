"""Measurements of networks, each with its prediction; names are imported on first use."""

from normless.lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    __file__,
    [
        "LayerPosition",
        "Loss",
        "Measurements",
        "PROBES",
        "Setting",
        "Watcher",
        "by_channel",
        "layer_positions",
        "layer_table",
    ],
)
