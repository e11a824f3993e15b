"""torch's attention as a place of edits: its own code reads its weights, and no module runs for each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from normless.nn.attention import TakesInputBias, is_attention, with_input_bias

if TYPE_CHECKING:
    from normless.edits.edit import Surgery


def attention_at(surgery: Surgery, path: str) -> TakesInputBias | None:
    """The torch attention at `path`, or the output projection of one, made able to take an input bias.

    None for a layer of any other kind.

    Raises:
        UnsupportedEditError: it runs at several places of the network.
    """
    if ":" in path:
        return None
    parent, _, name = path.rpartition(".")
    is_projection = name == "out_proj" and is_attention(surgery.get(parent))
    if not is_projection and not is_attention(surgery.get(path)):
        return None
    layer = surgery.single(path)
    made = with_input_bias(layer)
    if made is not layer and is_projection:
        # Its attention reads its parameters and never runs it.
        setattr(surgery.get(parent), name, made)
    elif made is not layer:
        surgery.replace(path, made)
    return made
