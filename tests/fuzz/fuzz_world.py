"""The folder that a case starts in: valid files of every kind that normless reads, and damage to them."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from PIL import Image

from normless.cli import main

DENSE = "normless:dense(depth=2, width=8, in_features=12, classes=3)"
SMALL = "normless:dense(depth=2, width=8)"
DIGITS = "digits(train=48, test=16)"
BERT = {"num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8}
TEXTS = {
    "mine.py": """import torch
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
    "sweep.yaml": f"""name: fuzzed
base: {{model: "{SMALL}", data: "{DIGITS}", epochs: 1, batch_size: 16}}
axes:
  scheme: [none, skipinit]
  network: {{shallow: {{model: "normless:dense(depth=1, width=8)"}}, deep: {{momentum: 0.5}}}}
rates: {{from: -5, to: -3}}
replicates: 2
best: 1
exclude: [{{scheme: none, network: deep}}]
""",
    "config.yaml": f"model: {SMALL}\nscheme: skipinit\ndata: {DIGITS}\nepochs: 1\nbatch_size: 16\nrate: 0.01\n",
    "bert.json": json.dumps({"model_type": "bert", "vocab_size": 64, **BERT}),
    "texts/train.tsv": "sentence\tlabel\n" + "".join(f"a{n % 3} film {n}\t{n % 2}\n" for n in range(24)),
    "texts/test.tsv": "sentence\tlabel\n" + "".join(f"b{n % 3} film\t{n % 2}\n" for n in range(8)),
    "pairs/train.de": "".join(f"ein Hund {n}\n" for n in range(46)),
    "pairs/train.en": "".join(f"a dog {n}\n" for n in range(46)),
    **{f"pairs/{part}.de": "ein Hund\nzwei Hunde\n" for part in ("val", "test")},
    **{f"pairs/{part}.en": "a dog\ntwo dogs\n" for part in ("val", "test")},
}


def write_world(folder: Path) -> None:
    """Write the files, some of them by commands, into the current folder, which must be `folder`."""
    for name, text in TEXTS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    generator = np.random.default_rng(0)
    for kind in ("train/cat", "train/dog", "val/cat", "val/dog"):
        (folder / "images" / kind).mkdir(parents=True)
        for number in range(4):
            pixels = generator.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "images" / kind / f"{number}.png")
    assert main(["convert", DENSE, "--image", "1", "3", "4", "--scheme", "skipinit", "--out", "net"]) == 0
    assert main(["train", "--config", "config.yaml", "--out", "run"]) == 0
    assert main(["sweep", "status", "sweep.yaml", "--once", "--out", "lab"]) == 0


def damage(path: Path, how: str, where: float, content: str) -> None:
    """Do one harm to a file, if it is there: `where` is a share of its length, `content` what another text is."""
    if not path.exists() or path.is_dir():
        return
    data, text = path.read_bytes(), content.encode("utf-8", "surrogateescape")
    at = min(int(where * len(data)), max(len(data) - 1, 0))
    if how == "flip" and data:
        path.write_bytes(data[:at] + bytes([data[at] ^ (1 << int(where * 1e6) % 8)]) + data[at + 1 :])
    elif how == "value":
        _change_value(path, where, content)
    elif how in ("gone", "folder"):
        path.unlink()
        if how == "folder":
            path.mkdir()
    else:
        repeated = data[:at] + data[at : at + 64] * 3 + data[at:]
        changed = {"truncate": data[:at], "repeat": repeated, "insert": data[:at] + text + data[at:], "replace": text}
        path.write_bytes(changed.get(how, data))


def _change_value(path: Path, where: float, content: str) -> None:
    """Put what YAML reads from `content` in the place of one value of a YAML, JSON or torch file."""
    value: Any = content
    with suppress(Exception):
        value = yaml.safe_load("" if "*" in content else content)
    if path.suffix not in (".yaml", ".json", ".pt"):
        return
    read = torch.load(path) if path.suffix == ".pt" else yaml.safe_load(path.read_text(encoding="utf-8"))
    places: list[tuple[Any, Any]] = []

    def collect(one: Any) -> None:
        for key in list(one) if isinstance(one, dict) else range(len(one)) if isinstance(one, list) else ():
            places.append((one, key))
            collect(one[key])

    collect(read)
    holder, key = places[int(where * len(places))]
    holder[key] = value
    with suppress(Exception):
        if path.suffix == ".pt":
            torch.save(read, path)
        else:
            text = yaml.safe_dump(read) if path.suffix == ".yaml" else json.dumps(read, default=str)
            path.write_text(text, encoding="utf-8")
