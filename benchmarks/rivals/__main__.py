"""Measure a tool of this package: `python -m benchmarks.rivals --diagnoser cockpit`; options of tests.faults."""

import benchmarks.rivals as adapters
from tests.faults.__main__ import main

if __name__ == "__main__":
    assert adapters.DIAGNOSERS
    raise SystemExit(main())
