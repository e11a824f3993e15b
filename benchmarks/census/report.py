"""The census as tables: a row per package, the reasons of refusals, and what should not have happened."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pandas as pd
import torch

from benchmarks.census.examine import CHECKS

HEADER = Path(__file__).with_name("report_header.md")
CONVERSIONS = ("skipinit_alpha_1", "skipinit", "fixup")
STEPS = ("mapped", *CONVERSIONS, "folded")
# Where a distribution has another name than its table.
DISTRIBUTIONS = {"torch_geometric": "torch-geometric", "segmentation_models_pytorch": "segmentation-models-pytorch"}


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """A row per package and one of all, with the columns that the header of the report explains."""
    groups = [*table.groupby("package"), *([("all", table)] if table["package"].nunique() > 1 else [])]
    return pd.DataFrame([_line(str(package), rows) for package, rows in groups])


def _line(package: str, rows: pd.DataFrame) -> dict[str, object]:
    ran = rows[rows["built"] == "yes"]
    normed = ran[(ran["blocks"] > 0) & ((ran["norms"] > 0) | (ran["norms_before"] != ""))]
    whole = int(((normed["skipinit_alpha_1"] == "yes") & (normed["no_norms"] == "yes")).sum())
    return {
        "package": package,
        "version": _version(package),
        "networks": len(rows),
        "ran": len(ran),
        "mapped": int((ran["mapped"] == "yes").sum()),
        **{name: int((ran[name] == "yes").sum()) for name in CONVERSIONS},
        "whole": f"{whole}/{len(normed)}",
        "refused": int(_any(ran, CONVERSIONS, "refused").sum()),
        "raw": int(_any(ran, (*STEPS, *CHECKS), "raw").sum()),
        "partial": int(((ran["no_norms"] != "yes") & (ran["no_norms"] != "")).sum()),
        "wrong": sum(1 for _ in wrong(ran)),
        "stated right": f"{int((ran['stated'] == 'yes').sum())}/{int((ran['stated'] != '').sum())}",
        "map": _passes(ran, "map_seconds", "mapped"),
        "conversion": _passes(ran, "convert_seconds", "skipinit_alpha_1"),
    }


def _passes(rows: pd.DataFrame, seconds: str, step: str) -> str:
    """The median of the seconds of a step in forward passes, of the networks with which it succeeded."""
    median = (rows[seconds] / rows["forward_seconds"])[rows[step] == "yes"].median()
    return "" if pd.isna(median) else f"{median:.1f}"


def _version(package: str) -> str:
    try:
        return version(DISTRIBUTIONS.get(package, package))
    except PackageNotFoundError:
        return ""


def _any(rows: pd.DataFrame, columns: tuple[str, ...], word: str) -> pd.Series[bool]:
    said = pd.DataFrame({column: rows[column].astype(str).str.startswith(word) for column in columns})
    return said.any(axis=1)


def wrong(rows: pd.DataFrame) -> Iterator[tuple[str, str, str, str]]:
    """Package, network, check and what is wrong, of every check but `no_norms` that was made and failed."""
    for row in rows.to_dict("records"):
        for name in CHECKS[1:]:
            if row[name] not in ("", "yes"):
                yield row["package"], row["network"], name, row[name]


def reasons(rows: pd.DataFrame, word: str) -> list[tuple[int, str, list[str]]]:
    """How often each reason of `refused`, `raw` or `ended` came, without names and numbers, and by which networks."""
    found: dict[str, tuple[str, dict[str, None]]] = {}
    for row in rows.to_dict("records"):
        for column in ("built", *STEPS, *CHECKS):
            outcome = str(row[column])
            if outcome.startswith(word):
                _, names = found.setdefault(_general(outcome), (outcome, {}))
                names[f"{row['package']} {row['network']} ({column})"] = None
    counted = [
        (len({name.rpartition(" (")[0] for name in names}), example, list(names)) for example, names in found.values()
    ]
    return sorted(counted, key=lambda one: -one[0])


def _general(outcome: str) -> str:
    """An outcome without the names of modules and numbers, which differ from one network to the next."""
    shorter = re.sub(r"'[^']*'|\"[^\"]*\"", "…", outcome)
    shorter = re.sub(r"\b[\w]+(\.[\w#:]+)+|\b\w*\d\w*|\b(this|a|the) [A-Z]\w+", "…", shorter)
    return shorter[:110]


def write_report(table: pd.DataFrame, path: Path) -> None:
    """Write the tables as Markdown."""
    seeds = ", ".join(sorted({str(seed) for seed in table["seed"]}))
    date = datetime.now(UTC).date()
    header = HEADER.read_text("utf-8").format(date=date, torch=torch.__version__, seeds=seeds)
    text = header + _markdown(summary(table))
    ran = table[table["built"] == "yes"]
    partial = ran[(ran["no_norms"] != "yes") & (ran["no_norms"] != "")]
    sections: dict[str, list[tuple[str, ...]]] = {
        "Converted in part": [
            (_code(str(row["network"])), str(row["package"]), str(row["no_norms"]))
            for row in partial.to_dict("records")
        ],
        "Checks that failed": [
            (_code(name), package, f"{check}: {what}") for package, name, check, what in wrong(ran)
        ],
        "Maps that differ from what was stated": [
            (_code(str(row["network"])), str(row["package"]), str(row["stated"]))
            for row in ran[~ran["stated"].isin(("", "yes"))].to_dict("records")
        ],
    }
    for title, rows in sections.items():
        listed = _markdown(pd.DataFrame(rows, columns=["network", "package", "what"])) if rows else "None.\n"
        text += f"\n## {title}\n\n{listed}"
    for title, word in (("Exceptions that are none of normless' own", "raw"), ("Reasons of refusals", "refused")):
        text += f"\n## {title}\n\n" + _listed(reasons(ran, word))
    failed = reasons(table, "ended") + reasons(table[table["built"] != "yes"], "raw")
    path.write_text(f"{text}\n## Networks that did not run or did not end\n\n{_listed(failed)}")


def _listed(found: list[tuple[int, str, list[str]]]) -> str:
    lines = []
    for number, example, names in found:
        more = " …" if len(names) > 8 else ""
        lines.append(f"- {number}×: {_escaped(example)}\n  {'; '.join(map(_code, names[:8]))}{more}\n")
    return "".join(lines) or "None.\n"


def _markdown(table: pd.DataFrame) -> str:
    rows = [list(table.columns), ["---" for _ in table.columns], *table.to_numpy().tolist()]
    return "".join(f"| {' | '.join(_escaped(str(cell)) for cell in row)} |\n" for row in rows)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def _code(text: str) -> str:
    return f"`{text}`"
