"""Names of other packages that probes, and what runs them, are written with."""

from normless._internal.state import preserve_random_state as preserve_random_state
from normless._internal.state import preserve_state as preserve_state
from normless._internal.state import running as running
from normless.nn.channels import by_channel as by_channel
from normless.nn.channels import channel_axis as channel_axis
