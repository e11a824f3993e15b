"""Measure a tool of this package: `python -m benchmarks.rivals --diagnoser cockpit`; options of benchmarks.faults."""

import benchmarks.rivals as adapters
from benchmarks.faults.__main__ import main

if __name__ == "__main__":
    assert adapters.RIVALS
    raise SystemExit(main())
