"""What a conversion leaves to read, `net.normless`, and the files of a saved network."""

from __future__ import annotations

import os
import pickle
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch

import normless as nl
from normless.models import resnet_cifar

X = torch.randn(2, 3, 8, 8)


def test_a_converted_network_says_what_was_done(tmp_path: Path) -> None:
    model = resnet_cifar(8)
    net = nl.convert(model, "fixup", X)
    said: Any = net.normless
    assert said.plan == nl.plan(model, "fixup", X)
    for text in ("fixup", f"{said.date:%Y-%m-%d}", str(said.plan[0])):
        assert text in str(said)
    assert len(repr(said)) < 100
    assert deepcopy(net).normless == pickle.loads(pickle.dumps(net)).normless == said
    assert not hasattr(model, "normless")
    nl.save(net, tmp_path)
    loaded: Any = nl.load(tmp_path, model)
    assert loaded.normless.plan == said.plan


def test_saved_files_have_the_permissions_of_new_files(tmp_path: Path) -> None:
    before, mask = os.umask(0o027), 0o027
    try:
        files = nl.save(nl.convert(resnet_cifar(8), "skipinit", X), tmp_path)
    finally:
        os.umask(before)
    assert [file.stat().st_mode & 0o777 for file in files] == [0o666 & ~mask] * 2
