"""Names of other packages that probes, and what runs them, are written with."""

from normless._internal.state import (
    preserve_random_state as preserve_random_state,
    preserve_state as preserve_state,
    running as running,
)
from normless.nn._channels import by_channel as by_channel, channel_axis as channel_axis
