"""Rules: each finds one kind of cause in the facts of a diagnosis, and registers itself for its stage."""

from normless.doctor.rules import (
    blocks as blocks,
)
from normless.doctor.rules import (
    construction as construction,
)
from normless.doctor.rules import (
    data as data,
)
from normless.doctor.rules import (
    direction as direction,
)
from normless.doctor.rules import (
    examples as examples,
)
from normless.doctor.rules import (
    layers as layers,
)
from normless.doctor.rules import (
    leaks as leaks,
)
from normless.doctor.rules import (
    losses as losses,
)
from normless.doctor.rules import (
    modes as modes,
)
from normless.doctor.rules import (
    outputs as outputs,
)
from normless.doctor.rules import (
    pairing as pairing,
)
from normless.doctor.rules import (
    reach as reach,
)
from normless.doctor.rules import (
    relation as relation,
)
from normless.doctor.rules import (
    scales as scales,
)
from normless.doctor.rules import (
    terms as terms,
)
from normless.doctor.rules import (
    unread as unread,
)
