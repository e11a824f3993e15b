"""Which text an artefact about language is carried out on."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from normless.spec import parse_call

if TYPE_CHECKING:
    from normless_papers.artefact import Context


def text_or(context: Context, usual: str, known: Collection[str]) -> str:
    """The user's text where what he asks for is one, else the budget's: data sets of images do not apply.

    Args:
        context: of the artefact.
        usual: of the budget, as text such as grammar or multi30k.
        known: the names of the texts that the artefact can be carried out on.
    """
    if context.data is None or parse_call(context.data)[0] not in known:
        return usual
    return context.data
