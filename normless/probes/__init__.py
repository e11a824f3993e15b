"""Measurements on a network, each with its theory beside it."""

from normless.probes.measure import Measurements as Measurements
from normless.probes.measure import probe as probe
from normless.probes.mixing import ExampleMixing as ExampleMixing
from normless.probes.mixing import MixingModule as MixingModule
from normless.probes.mixing import mixes_examples as mixes_examples
from normless.probes.observe import observe as observe
from normless.probes.ride_along import RideAlong as RideAlong
from normless.probes.signal import Signal as Signal
from normless.probes.signal import signal_table as signal_table
from normless.probes.theory import BlockMoments as BlockMoments
from normless.probes.theory import predicted_moments as predicted_moments
from normless.probes.watcher import Watcher as Watcher
