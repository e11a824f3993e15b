"""The folder that a case starts in: valid files of every kind that normless reads, and damage to them."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import yaml
from fuzz_hostile import CODE, EVIL, plant
from PIL import Image

from normless.cli import main
from normless_lab.process.yaml_files import checked_size

DENSE = "normless:dense(depth=2, width=8, in_features=12, classes=3)"
SMALL = "normless:dense(depth=2, width=8)"
DIGITS = "digits(train=48, test=16)"
TEXTS = {
    "mine.py": """
import torch
import normless as nl
from torch import nn
from normless import edits
from normless_lab.data import load_data


class Net(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.stem, self.norm = nn.Linear(12, width), nn.BatchNorm1d(width)
        self.inner, self.head = nn.Linear(width, width), nn.Linear(width, 3)

    def forward(self, x):
        h = self.stem(x.flatten(1))
        return self.head(h + self.inner(torch.relu(self.norm(h))))


def net(width: int = 4):
    return Net(width), torch.randn(4, 12)


def own(gain: float = 1.0):
    return (edits.RemoveNorms(), edits.RescaleBranches(gain))


def few():
    return load_data("digits", train=48, test=16)
""",
    EVIL: CODE,
    "sweep.yaml": f"""
name: fuzzed
base: {{model: "{SMALL}", data: "{DIGITS}", epochs: 1, batch_size: 16}}
axes:
  scheme: [none, skipinit]
  network: {{shallow: {{model: "normless:dense(depth=1, width=8)"}}, deep: {{momentum: 0.5}}}}
rates: {{from: -5, to: -3}}
replicates: 2
best: 1
exclude: [{{scheme: none, network: deep}}]
""",
    "config.yaml": f"""
model: {SMALL}
scheme: skipinit
data: {DIGITS}
epochs: 1
batch_size: 16
rate: 0.01
""",
    "bert.json": json.dumps(
        {
            "model_type": "bert",
            "num_hidden_layers": 1,
            "hidden_size": 8,
            "num_attention_heads": 2,
            "intermediate_size": 8,
            "vocab_size": 64,
        }
    ),
    "texts/train.tsv": "sentence\tlabel\n" + "".join(f"a{n % 3} film {n}\t{n % 2}\n" for n in range(24)),
    "texts/test.tsv": "sentence\tlabel\n" + "".join(f"b{n % 3} film\t{n % 2}\n" for n in range(8)),
    "tables/train.csv": "sentence,label\n" + "".join(f'"a, film {n}",{["good", "bad"][n % 2]}\n' for n in range(24)),
    "tables/test.csv": "sentence,label\n" + "".join(f"film {n},{['good', 'bad'][n % 2]}\n" for n in range(8)),
    "pairs/train.de": "".join(f"ein Hund {n}\n" for n in range(46)),
    "pairs/train.en": "".join(f"a dog {n}\n" for n in range(46)),
    "pairs/test.de": "ein Hund\nzwei Hunde\n",
    "pairs/test.en": "a dog\ntwo dogs\n",
}


def write_world(folder: Path) -> None:
    """Write the files, some of them by commands, into the current folder, which must be `folder`."""
    for name, text in TEXTS.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.lstrip(), encoding="utf-8")
    generator = np.random.default_rng(0)
    for split in ("train", "val"):
        for kind in ("cat", "dog"):
            (folder / "images" / split / kind).mkdir(parents=True)
            for number in range(4):
                pixels = generator.integers(0, 256, (8, 8, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / "images" / split / kind / f"{number}.png")
    rows = pd.DataFrame({"sentence": [f"a film {n}" for n in range(24)], "label": [n % 2 for n in range(24)]})
    (folder / "hub").mkdir()
    for split in ("train", "test"):
        rows.to_parquet(folder / "hub" / f"{split}.parquet")
    commands: list[list[str]] = [
        ["convert", DENSE, "--image", "1", "3", "4", "--scheme", "skipinit", "--out", "net"],
        ["train", "--config", "config.yaml", "--out", "run"],
        ["sweep", "status", "sweep.yaml", "--once", "--out", "lab"],
    ]
    for words in commands:
        assert main(words) == 0, words


def damage(path: Path, how: str, where: float, content: str) -> None:
    """Do one harm to a file, if it is there: `where` is a share of its length, `content` what another text is."""
    if how == "plant":
        plant(path, where, content)
    if not path.exists() or path.is_dir():
        return
    data = path.read_bytes()
    at = min(int(where * len(data)), max(len(data) - 1, 0))
    if how == "flip" and data:
        path.write_bytes(data[:at] + bytes([data[at] ^ (1 << int(where * 1e6) % 8)]) + data[at + 1 :])
    elif how == "truncate":
        path.write_bytes(data[:at])
    elif how == "repeat":
        path.write_bytes(data[:at] + data[at : at + 64] * 3 + data[at:])
    elif how == "insert":
        path.write_bytes(data[:at] + content.encode("utf-8", "surrogateescape") + data[at:])
    elif how == "replace":
        path.write_bytes(content.encode("utf-8", "surrogateescape"))
    elif how == "value":
        _change_value(path, where, content)
    elif how == "gone":
        path.unlink()
    elif how == "folder":
        path.unlink()
        path.mkdir()


def _change_value(path: Path, where: float, content: str) -> None:
    """Put what YAML reads from `content` in the place of one value of a YAML, JSON or torch file."""
    value: Any = content
    with suppress(Exception):
        value = checked_size(yaml.safe_load(content))
    if path.suffix in (".yaml", ".json"):
        read = yaml.safe_load(path.read_text(encoding="utf-8"))
        _set(read, where, value)
        with suppress(ValueError, MemoryError):
            path.write_text(
                yaml.safe_dump(read) if path.suffix == ".yaml" else json.dumps(read, default=str), encoding="utf-8"
            )
    elif path.suffix == ".pt":
        read = torch.load(path, weights_only=True)
        _set(read, where, value)
        with suppress(Exception):
            torch.save(read, path)


def _set(read: Any, where: float, value: Any) -> None:
    places: list[tuple[Any, Any]] = []

    def collect(one: Any) -> None:
        keys = list(one) if isinstance(one, dict) else range(len(one)) if isinstance(one, list) else ()
        for key in keys:
            places.append((one, key))
            collect(one[key])

    collect(read)
    if places:
        holder, key = places[int(where * len(places)) % len(places)]
        holder[key] = value


def copy_world(world: Path, folder: Path) -> None:
    """A copy of the folder for one case."""
    shutil.copytree(world, folder)
