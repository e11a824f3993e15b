"""Record what a network does in a forward pass: its operations, the calls in its code, the runs of its modules."""

from normless.recording.calls import ADDITIONS as ADDITIONS
from normless.recording.calls import Call as Call
from normless.recording.calls import Recorder as Recorder
from normless.recording.modules import Observer as Observer
from normless.recording.modules import Run as Run
from normless.recording.modules import followed as followed
from normless.recording.modules import never_fuse as never_fuse
from normless.recording.passes import recorded as recorded
from normless.recording.passes import tensors_in as tensors_in
from normless.recording.places import Place as Place
from normless.recording.places import reads as reads
from normless.recording.places import running_place as running_place
from normless.recording.tape import SHAPE_ONLY as SHAPE_ONLY
from normless.recording.tape import Node as Node
from normless.recording.tape import Tape as Tape
