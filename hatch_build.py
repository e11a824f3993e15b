"""The page of an index of packages: the README without what an index cannot show."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class Readme(MetadataHookInterface):
    """Leaves out images and the targets of links that are paths in the repository, which an index does not have."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the text of the project's page."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        text = re.sub(r"<p>\n<img .*?</p>\n\n", "", text, flags=re.DOTALL)
        text = re.sub(r"\[([^]]*)\]\((?!https?:)[^)]*\)", r"\1", text)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
