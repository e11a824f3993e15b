"""Record what a network does in a forward pass: its operations, the calls in its code, the runs of its modules."""

from normless.recording._calls import ADDITIONS as ADDITIONS, Call as Call, Recorder as Recorder
from normless.recording._modules import (
    Observer as Observer,
    Run as Run,
    followed as followed,
    never_fuse as never_fuse,
)
from normless.recording._passes import recorded as recorded, tensors_in as tensors_in
from normless.recording._places import Place as Place, reads as reads, running_place as running_place
from normless.recording._tape import SHAPE_ONLY as SHAPE_ONLY, Node as Node, Tape as Tape
