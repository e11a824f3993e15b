"""Errors of the papers: their settings, weights, results, checks, probes and plots."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from safetensors.torch import save_file
from torch import nn

from errors.wrong import Wrong
from normless.models import build_model, wide_resnet
from normless.probes import observe
from normless_papers.artefact import Artefact, Evidence, artefact_of
from normless_papers.claims import close, over_draws, within
from normless_papers.claims.agreement import deviation
from normless_papers.experiments.image_runs import PaperConfig
from normless_papers.gamma.pretrained import PretrainedWeightsError, networks_in, pretrained
from normless_papers.probes.histograms import peak_counts
from normless_papers.probes.summand_tables import SummandDistribution
from normless_papers.probes.updates import update_terms
from normless_papers.published import UnknownArtefactError, published_as
from normless_papers.text.config import TextConfig, TranslationConfig
from normless_papers.text.tokens import BytePairs, bucket_epoch
from normless_papers.text.translating import beam_search
from normless_papers.understanding_bn.initializations import conv_path

RESNET = "normless:resnet(depth=18, channels=4, in_channels=1, classes=10)"
EVIDENCE = pd.DataFrame({"x": [1]})
IMAGES, LABELS = torch.zeros(2, 3, 8, 8), torch.tensor([0, 1])
BINS = pd.DataFrame({"count": [1], "low": [0.0], "high": [1.0], "layer": "x", "order": 1, "parameter": None})


def in_folder(write: Callable[[Path], object], call: Callable[[Path], object]) -> Callable[[], object]:
    """A call on a new folder, in which something was written."""

    def called() -> object:
        with tempfile.TemporaryDirectory() as name:
            write(Path(name))
            return call(Path(name))

    return called


def weights(name: str, write: Callable[[Path], object], *words: str) -> Wrong:
    """Weights in a file that is not those of the network named beside it."""

    def written(folder: Path) -> None:
        (folder / "model.txt").write_text(RESNET)
        write(folder / ("w.safetensors" if "safetensors" in name else "w.pt"))

    return Wrong(
        f"weights: {name}", in_folder(written, lambda at: pretrained(str(at), "")), PretrainedWeightsError, *words
    )


def state(**changes: Any) -> dict[str, Any]:
    return {**build_model(RESNET).state_dict(), **changes}


def without(*names: str) -> dict[str, Any]:
    return {name: value for name, value in state().items() if name not in names}


def cut(file: Path) -> None:
    save_file(state(), file)
    file.write_bytes(file.read_bytes()[:1000])


def named(*files: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        for name in files:
            (folder / name).touch()

    return write


def setting(kind: Any, values: Mapping[str, Any], *words: str) -> Wrong:
    """A setting of a run that its configuration refuses."""
    return Wrong(f"{kind.__name__}: {values}", lambda: kind.from_dict(values), ValueError, *words)


FOUND = [
    weights(
        "a missing key", lambda at: torch.save(without("layer4.1.bn2.weight"), at), "layer4.1.bn2.weight", "w.pt"
    ),
    weights("a key too many", lambda at: torch.save(state(**{"layer9.weight": torch.ones(5)}), at), "layer9.weight"),
    weights(
        "other classes",
        lambda at: torch.save(state(**{"fc.weight": torch.ones(7, 32), "fc.bias": torch.ones(7)}), at),
        *("fc.weight", "7×32", "10×32"),
    ),
    weights("a pickle", lambda at: at.write_bytes(pickle.dumps(print)), "could run code"),
    weights("other bytes", lambda at: at.write_bytes(b"weights" * 20), "damaged"),
    weights("half of a file of safetensors", cut, "w.safetensors", "cannot be read"),
    Wrong(
        "weights: none",
        in_folder(named(), lambda at: pretrained(str(at), "")),
        PretrainedWeightsError,
        "0 state dicts",
    ),
    Wrong(
        "weights: two of a network",
        in_folder(named("resnet18.pt", "resnet18-5c106cde.pth"), lambda at: networks_in(str(at))),
        *(PretrainedWeightsError, "resnet_18", "resnet18.pt"),
    ),
]
SETTINGS = [
    setting(TextConfig, {"strategy": "fsdp2", "micro_batch_size": 8}, "leave micro_batch_size out"),
    setting(TextConfig, {"batch_tokens": 5}, "no setting batch_tokens", "model, scheme, data"),
    setting(TranslationConfig, {"source": "de", "target": "de"}, "source", "target", "'de'"),
    setting(TranslationConfig, {"longest": 2000}, "longest=2000", "batch_tokens=512"),
    setting(TranslationConfig, {"micro_batch_tokens": 2000}, "micro_batch_tokens", "batch_tokens=512"),
    setting(PaperConfig, {"warm_start_epochs": 2, "epochs": 2}, "warm_start_epochs", "epochs=2"),
    setting(PaperConfig, {"epochs_until_plateau": True, "epochs": 1}, "epochs", "2 or more", "got 1"),
]
ONE_ROW = np.array([3, 90, 2])
TEXTS = [
    Wrong("byte pairs", lambda: BytePairs.train(["low lower newest widest"], 10), ValueError, "alone are", "not 10"),
    Wrong("search: network", lambda: beam_search(nn.Linear(1, 1), LABELS), TypeError, "encode(source)", "Linear"),
    Wrong("buckets: too long", lambda: bucket_epoch(ONE_ROW, 50, seed=0, epoch=0), ValueError, "90 tokens", "50"),
    Wrong("buckets: seed", lambda: bucket_epoch(ONE_ROW, 100, seed=-1, epoch=0), ValueError, "seed", "negative"),
]
CLAIMS = [
    Wrong("deviation", lambda: deviation(torch.ones(2), torch.ones(1)), ValueError, "two tensors of one shape"),
    Wrong("no draw", lambda: over_draws([]), ValueError, "at least one draw"),
    Wrong("no tolerance", lambda: close("it is 10", 10, 10), ValueError, "'it is 10'", "tolerance"),
    Wrong(
        "no check",
        lambda: Artefact(published_as("fixup/equation-1"), "formula", Evidence, tuple).checks_of(
            Evidence(EVIDENCE, ())
        ),
        *(ValueError, "fixup/equation-1", "at least one check"),
    ),
    Wrong("range from high to low", lambda: within("It lies there", 1.5, 2.0, 1.0), ValueError, "from 2.0 to 1.0"),
    Wrong("no artefact", lambda: artefact_of("gauss/lemma-2"), UnknownArtefactError, "gauss/lemma-2"),
]
PROBES = [
    Wrong("peaks", lambda: peak_counts(BINS.assign(call=0, channel=0), prominence=0), ValueError, "(0, 1]", "0"),
    Wrong(
        "summands: chosen",
        lambda: observe(wide_resnet(10, 1), [SummandDistribution("stem", ["smallest"])], IMAGES, LABELS),
        *(ValueError, "'smallest'"),
    ),
    Wrong("no parameter", lambda: update_terms(nn.ReLU(), torch.randn(2, 3)), ValueError, "no trainable parameter"),
    Wrong("the first layer", lambda: conv_path(1), ValueError, "1"),
]
ERRORS = [*FOUND, *SETTINGS, *TEXTS, *CLAIMS, *PROBES]
