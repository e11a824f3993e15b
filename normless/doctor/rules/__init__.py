"""Rules: each finds one kind of cause in the facts of a diagnosis, and registers itself for its stage."""

from normless.doctor.rules import (
    _blocks as _blocks,
    _construction as _construction,
    _data as _data,
    _direction as _direction,
    _examples as _examples,
    _layers as _layers,
    _leaks as _leaks,
    _losses as _losses,
    _modes as _modes,
    _outputs as _outputs,
    _pairing as _pairing,
    _reach as _reach,
    _relation as _relation,
    _scales as _scales,
    _terms as _terms,
    _unread as _unread,
)
