"""Names of networks of torchvision, timm and transformers, looked up in their source files without an import.

Each of these libraries takes seconds to import. A name that is not a word of their files is no network's.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

from normless.registry import did_you_mean

# By library: the files that register networks, what precedes a name there, and what the library calls a network.
_REGISTERED = r"^@register_model\b.*?^def (\w+)"
FILES = {
    "torchvision": ("models/**/*.py", _REGISTERED, "model"),
    "timm": ("models/*.py", _REGISTERED, "model"),
    "transformers": ("models/auto/*.py", r'\("(\w+)", ', "kind of model"),
}


def check_zoo_name(library: str, name: str) -> None:
    """Refuse, by a ValueError with what was meant, a misspelt library, and a name that is no word of its files."""
    if library not in FILES:
        if library.endswith(".py"):
            return
        meant = did_you_mean(library, (*FILES, "normless"))
        if meant and find_spec(library.partition(".")[0]) is None:
            raise ValueError(f"There is no module {library} with a model {name!r}.{meant}")
        return
    files, pattern, kind = FILES[library]
    spec = find_spec(library)
    # Building the network names the extra of a library that is not installed.
    if spec is None or spec.origin is None:
        return
    texts = [path.read_text(encoding="utf-8") for path in Path(spec.origin).parent.glob(files)]
    word = re.compile(rf"\b{re.escape(name)}\b", re.IGNORECASE)
    if any(word.search(text) for text in texts):
        return
    names = [one for text in texts for one in re.findall(pattern, text, re.MULTILINE | re.DOTALL)]
    # Without a similar name the library itself is asked, whose error says where its networks are listed.
    if meant := did_you_mean(name, names):
        raise ValueError(f"{library} has no {kind} {name!r}.{meant}")
