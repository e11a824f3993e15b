"""The committed pages of docs/reproduction are those of the committed runs, and the guides repeat their counts."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from page_reader import Reader

from normless.cli import main
from normless_papers.published import PAPERS

ROOT = Path(__file__).parents[2]
REPRODUCTION = ROOT / "docs" / "reproduction"
RUNS = REPRODUCTION / "runs.parquet"
EMPTY = '<svg xmlns="http://www.w3.org/2000/svg" width="9pt" height="9pt" viewBox="0 0 9 9"></svg>'
# Differences of rounding, which a processor decides.
ROUNDING = re.compile(r"\d(?:\.\d+)?e-(?:0[7-9]|1\d)")
MARKDOWN = {"claims": "claims.md", "silent": "wrong_or_silent.md", "verdicts": "verdicts.md"}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the pages that `make campaign-save` would write."""
    folder = tmp_path_factory.mktemp("pages")
    files = [argument for name, file in MARKDOWN.items() for argument in (f"--{name}", str(folder / file))]
    with pytest.MonkeyPatch.context() as patch:
        # Drawings take most of the time, and are those of a version of matplotlib.
        for name in ("save_svg", "save_png"):
            patch.setattr(f"normless_lab.plots.{name}", lambda axes, path, **_: path.write_text(EMPTY))
        assert main(["report", "--from", str(RUNS), "--page", str(folder / "claims.html"), *files]) == 0
    return folder


@pytest.mark.parametrize("file", MARKDOWN.values())
def test_the_committed_markdown_is_that_of_the_committed_runs(file: str, written: Path) -> None:
    assert (REPRODUCTION / file).read_text("utf-8") == (written / file).read_text("utf-8")


@pytest.mark.parametrize("file", ["claims.html", *(f"{paper}.html" for paper in PAPERS)])
def test_the_committed_pages_have_the_numbers_of_the_committed_runs(file: str, written: Path) -> None:
    texts = [Reader((folder / file).read_text("utf-8")).text for folder in (REPRODUCTION, written)]
    committed, own = (ROUNDING.sub("0", text) for text in texts)
    assert committed == own


@pytest.mark.parametrize("guide", ["README.md", "docs/reproduction/README.md"])
def test_the_guides_repeat_the_counts(guide: str) -> None:
    paragraphs = (REPRODUCTION / "verdicts.md").read_text("utf-8").split("\n\n")
    (counts,) = (" ".join(own.split()) for own in paragraphs if own.startswith("Of "))
    assert counts in " ".join((ROOT / guide).read_text("utf-8").split())


COLUMNS = ("batch_norm", "fixup", "sqrt2(keep_scale=False)", "lsuv")


@pytest.mark.parametrize("depth", [10, 28, 112])
def test_the_table_of_depths_is_that_of_the_runs(depth: int) -> None:
    """A diverged run counts as chance."""
    rows = pd.read_parquet(RUNS).query("kind != 'artefact'").dropna(subset=["result"])
    accuracies: dict[str, list[float]] = {scheme: [] for scheme in COLUMNS}
    for config, result in zip(map(json.loads, rows["config"]), map(json.loads, rows["result"]), strict=True):
        model = f"normless:wide_resnet(depth={depth}, width=1, initialization=None)"
        if (config["data"], config["model"]) == ("cifar10", model) and config["scheme"] in accuracies:
            reached = result["chance_accuracy"] if result["outcome"] == "diverged" else result["test_accuracy"]
            accuracies[config["scheme"]].append(100 * reached)
    assert {len(found) for found in accuracies.values()} == {5 if depth == 10 else 3}
    cells = [f"{np.mean(found):.1f} ± {np.std(found, ddof=1):.1f}" for found in accuracies.values()]
    assert f"| {depth} | {' | '.join(cells)} |" in (REPRODUCTION / "README.md").read_text("utf-8")
