"""Arguments of networks by which a library asks the internet, or reads weights or code of any file or repository."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from normless.code_names import TRUST, of_data
from normless.errors import UntrustedCodeError
from normless.spec import format_call, parse_call, split_source

# Arguments for trained weights, which a library downloads; a saved network has its own.
TRAINED = ("pretrained", "pretrained_backbone", "use_pretrained_backbone", "weights", "weights_backbone")
# Other arguments for files, addresses and repositories. timm unpickles some of these weights.
_PLACES = ("checkpoint_path", "pretrained_cfg", "pretrained_cfg_overlay", "cache_dir", "hf_hub_id", "auto_map")
_LIBRARIES = ("torchvision:", "timm:", "transformers:")
_HUBS = ("hf_hub:", "hf-hub:", "hf:", "local_dir:", "local-dir:")


def refuse_downloads(text: str, name: str, arguments: Mapping[str, Any]) -> None:
    """Raise an UntrustedCodeError if data, see `names_of_data`, name weights, addresses or kernels of others.

    Args:
        text: the text or file that names them.
        name: the name of the network in its library.
        arguments: its arguments, or the values of its configuration.
    """
    if (data := of_data()) is None:
        return
    asked = [f"{key}={value!r}" for key, value in _asking(arguments)]
    if name.startswith(_HUBS) or "://" in name:
        asked.insert(0, name)
    if asked:
        raise UntrustedCodeError(
            f"{data} names weights of {text} by {', '.join(asked)}, for which a library asks the internet or reads "
            f"what is not in the data; name the network yourself, or set {TRUST}=1 if you trust them."
        )


def with_random_weights(text: str) -> str:
    """Return the text of a model without the arguments that name trained weights."""
    source, call = split_source(text)
    if source not in _LIBRARIES or not call.endswith(")"):
        return text
    name, arguments = parse_call(call)
    kept = {key: _random(value) for key, value in arguments.items() if key not in TRAINED}
    return text if kept == arguments else f"{source}{format_call(name, kept)}"


def _random(value: Any) -> Any:
    """Return a configuration in which nothing asks for trained weights; their default may be that they are there."""
    if isinstance(value, Mapping):
        return {key: False if key in TRAINED and item is True else _random(item) for key, item in value.items()}
    return value


def _asking(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each argument, at any depth, for which a library looks elsewhere."""
    if key in (*TRAINED, *_PLACES):
        if value not in (None, False, ""):
            yield key, value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _asking(item, str(name))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _asking(item, key)
    elif isinstance(value, str):
        is_repository = ("implementation" in key or key.endswith("backbone")) and "/" in value
        if is_repository or "://" in value or value.startswith(_HUBS):
            yield key, value
