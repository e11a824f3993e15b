"""Data that name code: a recipe, a file of runs, rows of a database. None of it may be executed."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pandas as pd
from hypothesis import strategies as st

from normless.saving import digest_of_values
from normless_lab.sweeps import RunRow, RunState
from normless_lab.sweeps.store import sqlite_url

EVIL = "evil.py"
MARK = "ran"
CODE = f"from pathlib import Path\nPath(__file__).with_name('{MARK}').touch()\ndef net(**_):\n    return None\n"
# What leaves the mark in the folder of the case if it is executed or followed.
NAMES = [
    *(f"{EVIL}:net", f"../{EVIL}:net", f"./{EVIL}:net(x=1)", "evil:net", f"none + {EVIL}:net()", f"../{EVIL}:net()"),
    *(f"subprocess:getoutput(cmd='touch {MARK}')", f"os:mkdir(path='{MARK}')", f"os:system(command='mkdir {MARK}')"),
    *(
        f"timm:resnet18(checkpoint_path='{EVIL}')",
        f'builtins:exec(source=\'open("{MARK}", "w")\')',
        f"../../../{MARK}",
    ),
]
_ROW = {
    "outcome": "trained",
    "error": None,
    "seconds": 0.0,
    "finished_at": "2026-01-01",
    "machine": "",
    "versions": {},
}
# Files, with the commands that read them.
READS: dict[str, list[list[str]]] = {
    "net/recipe.json": [["inspect", "net"], ["probe", "net", "--probes", "signal"], ["diagnose", "net"]],
    "runs.parquet": [["report", "--from", "runs.parquet", "--page", "page.html"]],
    "lab/runs.sqlite": [
        *(["sweep", "prune", "sweep.yaml", "--out", "lab"], ["watch", "lab", "--json"]),
        ["sweep", "status", "sweep.yaml", "--once", "--out", "lab"],
    ],
}


def plant(path: Path, where: float, name: str) -> None:
    """Let a file name code, at one of the places where it names something."""
    if path.suffix == ".json":
        values = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps(values | {["model", "scheme"][where < 0.5]: name}), encoding="utf-8")
    elif path.suffix == ".parquet":
        asked = {"id": "fixup/table-1", "budget": "smoke"} | {
            ["id", "data", "weights", "budget"][int(4 * where)]: name
        }
        rows: Any = [_ROW | {"hash": "a", "kind": "artefact", "config": asked, "result": None}]
        table = pd.DataFrame(rows, columns=[column.name for column in fields(RunRow)])
        for column in ("config", "versions"):
            table[column] = table[column].map(json.dumps)
        plain = table.astype(object).where(table.notna(), None).to_dict("records")
        table.assign(digest=[digest_of_values(dict(row)) for row in plain]).to_parquet(path, index=False)  # type: ignore[arg-type]
    else:
        path.parent.mkdir(exist_ok=True)
        with RunState(sqlite_url(path)) as state:
            config = {"model": name, "scheme": name, "data": name}
            values: Any = _ROW | {"hash": "a" * 64, "kind": name, "config": config, "result": {"outcome": "trained"}}
            state.add([RunRow(**values)])


def hostile() -> st.SearchStrategy[tuple[list[str], tuple[str, str, float, str]]]:
    """A command, and the damage to the file that it reads."""
    return st.sampled_from(list(READS)).flatmap(
        lambda file: st.tuples(
            st.sampled_from(READS[file]),
            st.tuples(st.just(file), st.just("plant"), st.floats(0, 1, exclude_max=True), st.sampled_from(NAMES)),
        )
    )
