"""Map one network of every architecture module of timm and write the table to docs/results/zoo.md.

Run it from anywhere: `python benchmarks/zoo.py [OUT.md [NETWORK …]]`. All networks take minutes.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import timm
import torch

from normless import residual_map
from normless.residual import ResidualMap
from normless_lab.process import available_cores

ROOT = Path(__file__).resolve().parent.parent
# The networks are those of the sweep that `make zoo` tests.
sys.path.insert(0, str(ROOT / "tests"))

from gallery import (  # noqa: E402
    ROWS,
    Row as Network,
    zoo,
)

HEADER = """\
# The residual structure of timm's architectures

A network of each of the {modules} architecture modules of timm {timm}, mapped with torch {torch} in eval mode on two
images of the size that it is made for, with random weights, on {threads} of {cores} cores. Written by
`make docs-zoo`; `make zoo` holds the same networks against blocks counted by hand from their definitions.

- *blocks*: residual sums x + f(x), and behind a plus those inside another's branch.
- *identity*: blocks of both kinds whose skip path is the identity; the others project, pool or take a part.
- *γ*: normalizations by the role of their γ: last of a branch, on a skip path (down), before the first block (stem),
  the rest (other).
- *open*: what the map lists as unresolved.
- *seconds*: one call of `residual_map`, which runs the network once and reads the pass.

| architecture | network | blocks | identity | γ last | down | stem | other | open | seconds |
| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
"""


@dataclass(frozen=True)
class Row:
    """A network, its map, and how long reading it took."""

    network: Network
    map: ResidualMap
    seconds: float

    def __str__(self) -> str:
        blocks = list(self.map.walk())
        inner = len(blocks) - self.map.depth
        roles = Counter(self.map.norms.values())
        name = self.network.name
        cells = (
            zoo.MODULES[name],
            name.removeprefix("timm ") + zoo.OPTIONS.get(name, ""),
            f"{self.map.depth} + {inner}" if inner else self.map.depth,
            sum(block.identity_skip for block in blocks),
            *(roles[role] for role in ("last", "down", "stem", "other")),
            len(self.map.unresolved),
            f"{self.seconds:.1f}",
        )
        return f"| {' | '.join(map(str, cells))} |\n"


def measure(network: Network) -> Row:
    """Build a network and read its map."""
    model, (images, _) = network.network().eval(), network.example()
    # What the last network left behind must not be collected at this one's cost.
    gc.collect()
    start = perf_counter()
    found = residual_map(model, *images)
    return Row(network, found, perf_counter() - start)


def main() -> None:
    """Measure the networks and write the table."""
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "results" / "zoo.md"
    networks = [ROWS[f"timm {name}"] for name in sys.argv[2:]] or [ROWS[name] for name in zoo.MODULES]
    # The first pass pays for imports.
    measure(ROWS["timm test_vit"])
    rows = []
    for number, network in enumerate(networks, start=1):
        rows.append(measure(network))
        sys.stderr.write(f"{number} of {len(networks)}: {network.name}\n")
    slowest = max(rows, key=lambda row: row.seconds)
    header = HEADER.format(
        modules=len({zoo.MODULES[network.name] for network in networks}),
        timm=timm.__version__,
        torch=torch.__version__,
        threads=torch.get_num_threads(),
        cores=available_cores(),
    )
    footer = (
        f"\n{len(rows)} networks in {sum(row.seconds for row in rows):.0f} seconds; the slowest, "
        f"{slowest.network.name}, took {slowest.seconds:.1f}.\n"
    )
    out.write_text(header + "".join(map(str, rows)) + footer)


if __name__ == "__main__":
    main()
