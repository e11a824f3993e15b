"""What several edits ask of the ones before them."""

from __future__ import annotations

from normless.edits.edit import Surgery


def need_no_norms(surgery: Surgery) -> None:
    """Refuse a network that still has a normalization.

    Raises:
        UnsupportedEditError: one is left.
    """
    for path in surgery.map.norms:
        if surgery.is_left(surgery.map.by_path[path]):
            raise surgery.unsupported(path, "this normalization is still there; RemoveNorms takes it away before")
