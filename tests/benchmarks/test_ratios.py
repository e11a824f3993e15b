"""Ratios are to a baseline that is measured in the same rounds."""

from __future__ import annotations

import pytest

from benchmarks.images_per_second import DataBench, measure_data
from benchmarks.ratios import (
    ConversionBench,
    ProbeBench,
    WatchBench,
    measure_conversion,
    measure_probes,
    measure_watch,
)


def test_a_converted_network_is_compared_with_itself_as_written() -> None:
    table = measure_conversion(ConversionBench(("normless:resnet_cifar(depth=8)",), rounds=2))
    assert table["scheme"].tolist() == ["as written", "skipinit", "fixup"]
    assert table["ratio"][0] == 1
    assert (table["lowest"] <= table["highest"]).all()


def test_augmentation_is_compared_with_torchvision() -> None:
    table = measure_data(DataBench(images=64, files=8, batch_size=32, image_size=8, rounds=1))
    assert table["loader"].tolist() == ["normless", "torchvision"] * 4
    assert (table["ratio"][1::2] == 1).all()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Step 3. The updates of .* are too small")
def test_probes_and_watches_are_compared_with_plain_passes() -> None:
    probes = measure_probes(ProbeBench(depth=8, batch_size=32, image_size=16, rounds=2))
    assert (probes["probes"][0], probes["ratio"][0]) == ("plain pass", 1)
    watched = measure_watch(WatchBench(depth=8, batch_size=2, image_size=8, rounds=1))
    assert watched["ratio"][::2].tolist() == [1, 1]
