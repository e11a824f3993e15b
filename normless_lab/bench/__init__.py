"""Speed claims, each measured as a ratio to a reference that alternates with it in the same process."""

from typing import TYPE_CHECKING

from normless.lazy import attach

if TYPE_CHECKING:
    from normless_lab.bench.conversion import ConversionBench as ConversionBench
    from normless_lab.bench.conversion import measure_conversion as measure_conversion
    from normless_lab.bench.data import DataBench as DataBench
    from normless_lab.bench.data import measure_data as measure_data
    from normless_lab.bench.map import MapBench as MapBench
    from normless_lab.bench.map import measure_map as measure_map
    from normless_lab.bench.probes import ProbeBench as ProbeBench
    from normless_lab.bench.probes import measure_probes as measure_probes
    from normless_lab.bench.scale import ScaleBench as ScaleBench
    from normless_lab.bench.scale import measure_scale as measure_scale
    from normless_lab.bench.step import StepBench as StepBench
    from normless_lab.bench.step import measure_inference as measure_inference
    from normless_lab.bench.step import measure_memory as measure_memory
    from normless_lab.bench.step import measure_step as measure_step
    from normless_lab.bench.step import training_step as training_step
    from normless_lab.bench.sweep import SweepBench as SweepBench
    from normless_lab.bench.sweep import measure_sweep as measure_sweep
    from normless_lab.bench.timing import seconds_in_turns as seconds_in_turns
    from normless_lab.bench.timing import timer_of as timer_of
    from normless_lab.bench.watch import WatchBench as WatchBench
    from normless_lab.bench.watch import measure_watch as measure_watch
else:
    __getattr__, __dir__, __all__ = attach(__name__, __file__)
