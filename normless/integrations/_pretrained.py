"""Networks of transformers saved with their conversion: `save_pretrained` writes what `normless.load` reads."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from normless._internal.arguments import carried_as_keywords
from normless.errors import RecipeError
from normless.models._text_classifier import TRANSFORMERS
from normless.saving._network import save
from normless.spec import format_call

# A name of weights that are not there: `from_pretrained` of any class fails on it, and says it.
REFUSING = {"model_type": "normless", "transformers_weights": "read this folder by normless.load.safetensors"}


def save_pretrained(
    net: nn.Module,
    save_directory: str | Path,
    is_main_process: bool = True,
    state_dict: Mapping[str, Tensor] | None = None,
    push_to_hub: bool = False,
    **_: Any,
) -> None:
    """Save a converted network as `normless.save` does; other options apply only to the library's own files."""
    own = net.state_dict()
    if push_to_hub or any(
        name not in own or own[name].shape != value.shape for name, value in (state_dict or {}).items()
    ):
        raise RecipeError(
            f"This {type(net).__name__} is converted; its save_pretrained saves its own weights to a folder: "
            "expected no push_to_hub=True and no state_dict of other names or shapes (gathered shards)."
        )
    if is_main_process:
        save(net, save_directory, text_of(net), example_inputs=carried_as_keywords(net))
        (Path(save_directory) / "config.json").write_text(json.dumps(REFUSING), encoding="utf-8")


def text_of(net: nn.Module) -> str | None:
    """Return the text that names a class of transformers and a configuration, or None for other classes."""
    kind: Any = getattr(type(net), "normless_original", type(net))
    name: str = kind.__name__
    if getattr(sys.modules.get(TRANSFORMERS), name, None) is not kind:
        return None
    config: Any = net.config
    settings = json.loads(config.to_json_string())
    # The folder of this machine that the weights came from.
    settings.pop("_name_or_path", None)
    return format_call(f"{TRANSFORMERS}:{name}", {"config": settings})
