"""Make the tables of docs/results/schemes_by_kind.md from the finished runs of schemes_by_kind.py.

Run it as `python benchmarks/schemes_by_kind_table.py [FILE.jsonl] [--write]`; `--write` puts them into the page.
"""

from __future__ import annotations

import re
import sys
from argparse import ArgumentParser
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

from schemes_by_kind import KINDS, RATES, SCHEMES, SEEDS, Results, chosen_rate

HOME = Path(__file__).parent
RESULTS = HOME / "schemes_by_kind.jsonl"
PAGE = HOME.parent / "docs" / "results" / "schemes_by_kind.md"
NORMALIZED, TESTED = SCHEMES[0], SCHEMES[1:]
OPTIMIZERS = {"sgd": "SGD with momentum", "adamw": "AdamW"}
# Networks on which a scheme loses, and the scheme changed by what is taken for the cause.
CHANGED = (
    ("cosine classifier", "skipinit", "skipinit + OnlyTopNorm()"),
    ("GPT, layer norm", "dyt", "dyt(alpha=30)"),
    ("ViT", "fixup", "fixup(zero=False)"),
)
# Means that are closer than this, than this share of the original's, or than twice its deviation, count as level.
CLOSE, LEVEL = 0.01, 0.05


class Cell(NamedTuple):
    """A network under a scheme and an optimizer at its best rate: losses of the seeds that did not diverge."""

    rate: float | None
    train: tuple[float, ...]
    held_out: tuple[float, ...]
    seeds: int
    searched: bool

    @property
    def complete(self) -> bool:
        """Whether all rates were run, and at the best one all seeds, unless every rate diverged."""
        return self.searched and (self.rate is None or self.seeds == len(SEEDS))

    @property
    def trained(self) -> bool:
        """Whether no seed diverged."""
        return self.rate is not None and len(self.train) == self.seeds

    @property
    def at_an_end(self) -> bool:
        """Whether the best rate is the lowest or the highest of those tried."""
        return any(self.rate in (rates[0], rates[-1]) for rates in RATES.values())


class Table:
    """The cells of the finished runs."""

    def __init__(self, results: Results) -> None:
        refused = [row for row in results.rows if "refused" in row]
        self.refused = {(row["network"], row["scheme"]): short(row["scheme"], row["refused"]) for row in refused}
        runs: dict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
        for row in results.rows:
            if "rate" in row:
                runs[row["network"], row["scheme"], row["optimizer"]].append(row)
        self.cells = {key: cell for key, rows in runs.items() if (cell := cell_of(rows)).complete}
        self.runs = sum(map(len, runs.values()))
        tried = {scheme for _, scheme, *_ in (*self.cells, *self.refused)}
        self.schemes = [name for name in SCHEMES if name in tried]

    def best(self, network: str, scheme: str) -> Cell | None:
        """Under the optimizer with the lower training loss; None where neither finished or both diverged."""
        cells = [self.cells[key] for name in OPTIMIZERS if (key := (network, scheme, name)) in self.cells]
        return min((cell for cell in cells if cell.trained), key=lambda cell: mean(cell.train), default=None)

    def tried(self, network: str, scheme: str) -> bool:
        """Whether it was trained under both optimizers."""
        return all((network, scheme, name) in self.cells for name in OPTIMIZERS)

    def verdict(self, network: str, scheme: str) -> str:
        """Held-out loss against the normalized original: `ahead`, `level`, `behind`, `diverged`, `refused` or ``."""
        original = self.best(network, NORMALIZED)
        if original is None:
            return ""
        if (network, scheme) in self.refused:
            return "refused"
        if not self.tried(network, scheme):
            return ""
        cell = self.best(network, scheme)
        if cell is None:
            return "diverged"
        distance = mean(cell.held_out) - mean(original.held_out)
        if abs(distance) <= max(CLOSE, 2 * stdev(original.held_out), LEVEL * mean(original.held_out)):
            return "level"
        return "ahead" if distance < 0 else "behind"


def cell_of(rows: Sequence[dict[str, Any]]) -> Cell:
    """The runs of a network, a scheme and an optimizer, at the rate that was best on seed 0."""
    searched = sum(row["seed"] == 0 for row in rows) == len(RATES[rows[0]["optimizer"]])
    rate = chosen_rate(list(rows))
    at_best = [row for row in rows if row["rate"] == rate]
    finished = [row for row in at_best if "train" in row]
    losses = (tuple(row[name] for row in finished) for name in ("train", "held_out"))
    return Cell(rate, *losses, len(at_best), searched)


def answer(table: Table) -> Iterator[str]:
    """A row per kind: the schemes by their verdicts on its networks."""
    yield "| kind | networks | ahead of its norms | level | behind | diverged | refused |"
    yield "| --- | ---: | --- | --- | --- | --- | --- |"
    for kind, entries in KINDS.items():
        names = [name for name, *_ in entries]
        counts: dict[str, list[str]] = defaultdict(list)
        for scheme in TESTED:
            verdicts = [verdict for name in names if (verdict := table.verdict(name, scheme))]
            for verdict in dict.fromkeys(verdicts):
                times = f" ({verdicts.count(verdict)} of {len(verdicts)})" if len(verdicts) > 1 else ""
                counts[verdict].append(f"`{scheme}`{times}")
        tested = sum(table.best(name, NORMALIZED) is not None for name in names)
        columns = (", ".join(counts[name]) for name in ("ahead", "level", "behind", "diverged", "refused"))
        yield f"| {kind} | {tested} | {' | '.join(columns)} |"


def summary(table: Table) -> Iterator[str]:
    """On how many networks a scheme is no worse than their norms by more than a small share, by optimizer."""
    yield "| scheme | optimizer | networks | all seeds trained | training loss kept | held-out loss kept |"
    yield "| --- | --- | ---: | ---: | ---: | ---: |"
    for scheme in table.schemes[1:]:
        for optimizer, title in OPTIMIZERS.items():
            pairs = [
                (original, cell)
                for (network, name, of), original in table.cells.items()
                if (name, of) == (NORMALIZED, optimizer) and original.trained
                if (cell := table.cells.get((network, scheme, optimizer))) is not None
            ]
            trained = [(original, cell) for original, cell in pairs if cell.trained]
            kept = [sum(_kept(mean(a.train), mean(b.train)) for a, b in trained)]
            kept.append(sum(_kept(mean(a.held_out), mean(b.held_out)) for a, b in trained))
            yield f"| `{scheme}` | {title} | {len(pairs)} | {len(trained)} | {kept[0]} | {kept[1]} |"


def _kept(original: float, loss: float) -> bool:
    return loss <= original + max(CLOSE, LEVEL * original)


def numbers(table: Table, optimizer: str) -> Iterator[str]:
    """A row per network, a column per scheme."""
    reasons = reasons_of(table)
    yield f"| {OPTIMIZERS[optimizer]} | {' | '.join(f'`{scheme}`' for scheme in table.schemes)} |"
    yield f"| --- |{' ---: |' * len(table.schemes)}"
    for entries in KINDS.values():
        for name in (name for name, *_ in entries if (name, NORMALIZED, optimizer) in table.cells):
            cells = []
            for scheme in table.schemes:
                reason = table.refused.get((name, scheme))
                number = f"refused [{reasons.index(reason) + 1}]" if reason else ""
                cells.append(number or text_of(table.cells.get((name, scheme, optimizer))))
            yield f"| {name} | {' | '.join(cells)} |"


def text_of(cell: Cell | None) -> str:
    """Training loss ± deviation / held-out loss."""
    if cell is None:
        return ""
    if cell.rate is None:
        return "diverged"
    if not cell.trained:
        return f"diverged on {cell.seeds - len(cell.train)} of {cell.seeds} seeds"
    mark = "†" if cell.at_an_end else ""
    return f"{mean(cell.train):.3f} ± {stdev(cell.train):.3f} / {mean(cell.held_out):.3f}{mark}"


def changes(table: Table) -> Iterator[str]:
    """Networks on which a scheme loses: with their norms, under the scheme, under the scheme changed."""
    yield "| network | scheme | optimizer | as written | scheme | changed |"
    yield "| --- | --- | --- | ---: | ---: | ---: |"
    for network, scheme, changed in CHANGED:
        for optimizer, title in OPTIMIZERS.items():
            keys = [(network, name, optimizer) for name in (NORMALIZED, scheme, changed)]
            cells = [text_of(table.cells.get(key)) for key in keys]
            if all(cells):
                yield f"| {network} | `{changed}` | {title} | {' | '.join(cells)} |"


def reasons_of(table: Table) -> list[str]:
    """The different reasons, in the order of the schemes."""
    shown = {
        (name, scheme): reason for (name, scheme), reason in table.refused.items() if table.best(name, NORMALIZED)
    }
    columns = [reason for scheme in table.schemes for (_, name), reason in shown.items() if name == scheme]
    return list(dict.fromkeys(columns))


def footnotes(table: Table) -> Iterator[str]:
    """Why networks were refused."""
    for index, reason in enumerate(reasons_of(table), 1):
        yield f"{index}. {reason}"


def short(scheme: str, reason: str) -> str:
    """What an error says of a place, without the place, sizes and what follows a colon or semicolon."""
    line = " ".join(reason.split()).replace("|", "/")
    said = re.sub(r"^.* is not possible (?:at|in) [^:]*(?::\w+)?: ", "", line)
    said = re.sub(
        r"(?<=a conv) [^,]*|(?<=by side), .*?(?=, whose)|(?<=instance norm) \d+|(?<=Transpose)\dd", "", said
    )
    return f"`{scheme}`: {re.split('[:;] ', said)[0].rstrip('.')}."


def parts(table: Table) -> dict[str, str]:
    """The tables by the names of their places in the page."""
    made = {
        "answer": answer(table),
        "refused": footnotes(table),
        "changes": changes(table),
        "summary": summary(table),
    }
    made |= {name: numbers(table, name) for name in OPTIMIZERS}
    return {name: "\n".join(lines) for name, lines in made.items()}


def written(page: str, made: dict[str, str]) -> str:
    """The page with the tables between its marks, `<!-- NAME -->` and `<!-- end -->`."""
    for name, text in made.items():
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        page = pattern.sub(lambda match, text=text: f"{match[1]}{text}\n{match[2]}", page)
    return page


def main() -> None:
    """Print the tables or put them into the page."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, nargs="?", default=RESULTS)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    table = Table(Results(arguments.results))
    made = parts(table)
    if arguments.write:
        PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), made), encoding="utf-8")
    else:
        sys.stdout.write(f"{table.runs} runs\n\n" + "\n\n".join(made.values()) + "\n")


if __name__ == "__main__":
    main()
