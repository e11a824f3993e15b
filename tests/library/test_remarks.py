"""What a conversion leaves to read: a line of the log if it needs attention, and `net.normless`."""

from __future__ import annotations

import os
import pickle
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import normless as nl
from normless.models import resnet_cifar

X = torch.randn(2, 3, 8, 8)


def _logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "normless"]


def _trained() -> nn.Module:
    model = resnet_cifar(8)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 2)
    nn.init.normal_(model.classifier.weight)
    return model


def test_a_converted_network_says_what_was_done(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = _trained()
    net = nl.convert(model, "fixup", X)
    said: Any = net.normless
    assert said.plan == nl.plan(model, "fixup", X)
    for text in ("fixup", f"{said.date:%Y-%m-%d}", str(said.plan[0])):
        assert text in str(said)
    assert len(repr(said)) < 100
    assert deepcopy(net).normless == pickle.loads(pickle.dumps(net)).normless == said
    assert not hasattr(model, "normless")
    caplog.clear()
    nl.save(net, tmp_path)
    loaded: Any = nl.load(tmp_path, model)
    assert loaded.normless.plan == said.plan
    assert not _logged(caplog)


def test_saved_files_have_the_permissions_of_new_files(tmp_path: Path) -> None:
    before, mask = os.umask(0o027), 0o027
    try:
        files = nl.save(nl.convert(resnet_cifar(8), "skipinit", X), tmp_path)
    finally:
        os.umask(before)
    assert [file.stat().st_mode & 0o777 for file in files] == [0o666 & ~mask] * 2
