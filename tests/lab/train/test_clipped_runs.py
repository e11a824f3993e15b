"""Adaptive gradient clipping in runs: which parameters it clips, and that they move less."""

from __future__ import annotations

from pathlib import Path

from normless_lab.train import TrainConfig, train, trained_network

SHORT = TrainConfig(
    model="normless:wide_resnet(depth=10, width=1)",
    scheme="nf_resnet",
    batch_size=512,
    epochs=1,
    crop=0,
    device="cpu",
)


def test_a_clipped_run_moves_less(tmp_path: Path) -> None:
    """A multiplier at zero counts as ε = 1e-3: with λ = 1e-6 a step at rate 0.1 moves it by 1e-10 at most."""
    config = TrainConfig.from_dict(SHORT.to_dict() | {"clip": 1e-6, "weight_decay": 0.0})
    train(config, tmp_path / "clipped")
    train(TrainConfig.from_dict(SHORT.to_dict() | {"weight_decay": 0.0}), tmp_path / "free")
    clipped, free = trained_network(tmp_path / "clipped"), trained_network(tmp_path / "free")
    assert (clipped.blocks[0].conv2.multiplier.abs() < 1e-8).all()
    assert (free.blocks[0].conv2.multiplier.abs() > 1e-5).all()
