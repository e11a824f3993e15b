"""Measurements on a network, each with its theory beside it."""

from normless.probes.signal import signal_table as signal_table
from normless.probes.theory import BlockMoments as BlockMoments
from normless.probes.theory import predicted_moments as predicted_moments
