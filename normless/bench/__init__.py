"""Speed claims, each a ratio against a rival that runs in turn with it in the same process."""

from normless.bench.probes import ProbeBench as ProbeBench
from normless.bench.probes import measure_probes as measure_probes
from normless.bench.step import StepBench as StepBench
from normless.bench.step import measure_step as measure_step
from normless.bench.structure import MapBench as MapBench
from normless.bench.structure import measure_map as measure_map
from normless.bench.sweep import SweepBench as SweepBench
from normless.bench.sweep import measure_sweep as measure_sweep
