"""`make fuzz`: thousands of wrong command lines, files, texts and calls, and what became of each.

A case counts as bad if it ends in a traceback other than of the user's own file, in the last net of `main`, in a
crash or past its limits, if it is refused and leaves something in the folder, or if code that data name is executed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib import import_module
from math import ceil
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "OMP_NUM_THREADS": "1"}

from fuzz_cases import KINDS, WEIGHTS, Case
from fuzz_outcomes import BAD, Outcome, carried_out, in_fork
from fuzz_world import write_world
from hypothesis import HealthCheck, Phase, given, seed, settings

VERDICTS = ("survived", "refused", "user's own", *BAD)
# Cases of all kinds that hypothesis draws at a time.
DRAWN = 1000
# Imported once, and not in every process.
IMPORTED = (
    *("torch.export", "torch._dynamo", "transformers", "torchvision", "timm", "lightning_fabric", "tensorboard"),
    *(
        "normless_lab.sweeps",
        "normless_lab.bench",
        "normless_lab.plots",
        "normless.models",
        "normless.residual.modes",
        "sacrebleu",
    ),
    *(
        "normless_papers.results.reproduce",
        "normless_lab.train.translation_task",
        "normless_papers.text.text_task",
        "tokenizers",
    ),
    *("transformers.models.bert.modeling_bert", "torch.utils.tensorboard"),
)


def drawn(count: int, start: int, kinds: Sequence[str]) -> list[Case]:
    """About so many cases by hypothesis, the same for the same start, a share of every kind by its weight."""
    weights = {kind: WEIGHTS.get(kind, 1) for kind in KINDS if not kinds or kind in kinds}
    made: list[Case] = []
    for kind, weight in weights.items():
        share = ceil(count * weight / sum(weights.values()))

        @seed(start)
        @settings(
            max_examples=share,
            database=None,
            derandomize=False,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
            deadline=None,
        )
        @given(KINDS[kind])
        def collect(case: Case) -> None:
            made.append(case)

        collect()
    return made


def outcomes_of(count: int, start: int, kinds: Sequence[str]) -> Iterator[Outcome]:
    """The outcomes of so many cases or a few more."""
    for name in IMPORTED:
        with suppress(ImportError):
            import_module(name)
    with tempfile.TemporaryDirectory() as folder:
        world, scratch = Path(folder).resolve() / "world", Path(folder).resolve() / "case"
        world.mkdir()
        os.environ |= {"NORMLESS_DATA": str(Path(folder) / "data"), "HOME": folder}
        os.chdir(world)
        # Not in this process: torch's threads of a backward pass do not survive a fork.
        in_fork(lambda _: write_world(world))
        done = 0
        while done < count:
            batch = drawn(min(DRAWN, count - done), start + done, kinds)
            yield from carried_out(batch, world, scratch)
            done += len(batch)


def main() -> int:
    """Print a line for each bad case and the table of verdicts by kind; 1 if any case was bad."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000, help="how many")
    parser.add_argument("--seed", type=int, default=0, help="of the cases")
    parser.add_argument("--kinds", nargs="+", default=[], help="kinds of cases; all if left out")
    parser.add_argument("--rows", type=Path, default=None, help="file for every outcome, a JSON object per line")
    arguments = parser.parse_args()
    counts: Counter[tuple[str, str]] = Counter()
    rows = None if arguments.rows is None else arguments.rows.open("w", encoding="utf-8")
    report = sys.stdout
    for outcome in outcomes_of(arguments.cases, arguments.seed, arguments.kinds):
        counts[outcome.case.kind, outcome.verdict] += 1
        if rows is not None:
            rows.write(json.dumps(asdict(outcome), default=repr) + "\n")
        if outcome.verdict in BAD:
            report.write(f"{outcome.verdict}: {outcome.words} [{outcome.place}]\n    {outcome.case!r}"[:3000] + "\n")
            report.flush()
    kinds = sorted({kind for kind, _ in counts})
    report.write(f"{'':20}{'tried':>10}" + "".join(f"{name:>11}" for name in VERDICTS) + "\n")
    for kind in [*kinds, "together"]:
        cells = [
            sum(n for (one, of), n in counts.items() if of == name and kind in (one, "together")) for name in VERDICTS
        ]
        report.write(f"{kind:20}{sum(cells):>10}" + "".join(f"{cell:>11}" for cell in cells) + "\n")
    return int(any(verdict in BAD for _, verdict in counts))


if __name__ == "__main__":
    sys.exit(main())
