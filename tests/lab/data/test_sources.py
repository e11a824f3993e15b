from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from normless_lab.data import Augmentation, ImageData, default_root, load_data, sources_of

NOTHING = Augmentation()


def test_unknown_names_and_options_list_the_known() -> None:
    with pytest.raises(ValueError, match=r"no data set 'mnist' of labelled images\. There are digits, cifar10, "):
        load_data("mnist")
    with pytest.raises(ValueError, match=r"gaussian has no option sides; its options are image_shape, classes"):
        load_data("gaussian(sides=3)")
    with pytest.raises(ValueError, match="digits has no option seed; its options are side, channels, train, test"):
        load_data("digits", seed=3)
    names = ["digits", "cifar10", "cifar100", "svhn", "image_folder", "pets", "gaussian", "correlated"]
    assert list(sources_of(ImageData)) == names


def test_digits_are_the_whole_set_split_evenly_over_the_classes() -> None:
    data = load_data("digits")
    assert (data.name, data.classes, data.image_shape) == ("digits", 10, (1, 8, 8))
    assert (data.train_size, data.test_size) == (1437, 360)
    assert data.default_augmentation == Augmentation()
    both = [
        next(iter(data.train_batches(1437, seed=0, epoch=0, augmentation=NOTHING, device="cpu"))),
        next(iter(data.test_batches(360, device="cpu"))),
    ]
    pixels = (torch.cat([batch.inputs for batch in both]) * data.std[0] + data.mean[0]) * 255
    labels = torch.cat([batch.targets for batch in both])
    found = sorted(zip(labels.tolist(), pixels.round().byte().flatten(1).tolist(), strict=True))
    bunch = load_digits()
    expected = np.rint(bunch.data * 255 / 16).astype(int)
    assert found == sorted(zip(bunch.target.tolist(), expected.tolist(), strict=True))
    assert expected.max() == 255
    shares = data.test_labels.bincount() / (data.test_labels.bincount() + data.train_labels.bincount())
    assert torch.all((shares - 360 / 1797).abs() < 0.005)
    assert load_data("digits").provenance == data.provenance


def test_digits_repeat_their_channel() -> None:
    grey, colours = (load_data(text) for text in ("digits(train=10)", "digits(channels=3, train=10)"))
    assert colours.image_shape == (3, 8, 8)
    first, second = (next(iter(data.test_batches(4))).inputs for data in (grey, colours))
    assert torch.equal(first.expand(-1, 3, -1, -1), second)
    with pytest.raises(ValueError, match="channels=0"):
        load_data("digits(channels=0)")


def test_gaussian_is_standard_normal_with_random_labels() -> None:
    data = load_data("gaussian(image_shape=(3, 16, 16), classes=4, train=400)", test=100)
    assert (data.classes, data.image_shape, data.train_size, data.test_size) == (4, (3, 16, 16), 400, 100)
    (batch,) = data.train_batches(400, seed=0, epoch=0, augmentation=data.default_augmentation, device="cpu")
    assert batch.inputs.mean().item() == pytest.approx(0, abs=0.01)
    assert batch.inputs.var().item() == pytest.approx(1, abs=0.01)
    assert batch.targets.unique().tolist() == [0, 1, 2, 3]
    assert (
        data.provenance == load_data("gaussian(classes=4, train=400, test=100, image_shape=(3, 16, 16))").provenance
    )
    assert data.provenance != load_data("gaussian(classes=4, train=400, test=100, seed=1)").provenance


@pytest.mark.parametrize(
    "options",
    [
        "image_shape=(3, 8)",
        "image_shape=(0, 8, 8)",
        "image_shape=8",
        "image_shape=(8.5,)",
        "classes=0",
        "train=0",
        "test=1.5",
    ],
)
def test_impossible_gaussians_are_refused(options: str) -> None:
    with pytest.raises(ValueError, match=rf"{(name := options.split('=')[0])} of gaussian|gaussian, {name} is a "):
        load_data(f"gaussian({options})")


def test_default_root_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NORMLESS_DATA", str(tmp_path))
    assert default_root() == tmp_path
    monkeypatch.delenv("NORMLESS_DATA")
    assert default_root() == Path.home() / ".cache" / "normless"
