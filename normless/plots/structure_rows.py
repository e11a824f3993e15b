"""Where the pieces of a drawn network go: in rows, with what is too much of one form folded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from normless.plots.structure_pieces import GAP, Piece, Point, block_piece, chain_piece, gap_piece
from normless.residual import ResidualMap

MOST_BLOCKS = 36
LONGEST_PERIOD = 6
ROW = 68.0


@dataclass(frozen=True)
class Drawing:
    """Every piece in its place, the two ends of the trunk of each row, and how far all that reaches from (0, 0).

    Rows lie below each other, so that y is negative; the trunk of each goes on in the next.
    """

    pieces: tuple[Piece, ...]
    trunks: tuple[tuple[Point, Point], ...]
    width: float
    height: float


def arranged(residual_map: ResidualMap) -> Drawing:
    """The drawing of a network."""
    pieces: list[Piece] = []
    trunks = []
    top = 0.0
    rows = _in_rows(_pieces(residual_map))
    for row in rows:
        x, y = 0.0, top - max(piece.above for piece in row)
        for piece in row:
            pieces.append(piece.moved(x, y))
            x += piece.width + GAP
        trunks.append(((-GAP, y), (x if row is not rows[-1] else x - GAP, y)))
        # One unit for the names.
        top = y - max(piece.below for piece in row) - 1.0
    return Drawing(tuple(pieces), tuple(trunks), max(x for _, (x, _) in trunks), -top)


def _pieces(residual_map: ResidualMap) -> list[Piece]:
    """The network from stem to head in pieces, runs of blocks of one form folded where there are too many."""
    roles = residual_map.norms
    blocks = _shortly_named([block_piece(block, roles) for block in residual_map.blocks])
    if len(blocks) > MOST_BLOCKS:
        blocks = list(_folded(blocks))
    if len(blocks) > MOST_BLOCKS:
        half = MOST_BLOCKS // 2
        hidden = sum(piece.blocks for piece in blocks[half:-half])
        blocks = [*blocks[:half], gap_piece(f"{hidden} more left out", hidden), *blocks[-half:]]
    ends = ((residual_map.trunk_layers, "between blocks"), (residual_map.head_layers, "head"))
    stem = "stem" if residual_map.blocks else "layers"
    pieces = [
        *([chain_piece(residual_map.stem_layers, roles, stem)] if residual_map.stem_layers else []),
        *blocks,
        *(chain_piece(layers, roles, name) for layers, name in ends if layers),
    ]
    return pieces or [gap_piece("no layers")]


def _shortly_named(blocks: list[Piece]) -> list[Piece]:
    """The blocks without the modules that all their names start with, where a name has no room for them."""
    names = [block.name.split(".") for block in blocks]
    if all(len(block.name) <= block.letters for block in blocks) or len(names) < 2:
        return blocks
    shared = 0
    while all(len(name) > shared + 1 and name[shared] == names[0][shared] for name in names):
        shared += 1
    return [replace(block, name=".".join(name[shared:])) for block, name in zip(blocks, names, strict=True)]


def _folded(blocks: Sequence[Piece]) -> Iterator[Piece]:
    """The blocks with each run of one form, or of several in turn, cut to the first of each and a count."""
    forms = [replace(block, name="") for block in blocks]
    start = 0
    while start < len(blocks):
        period, length = max(
            ((period, _run_length(forms, start, period)) for period in range(1, LONGEST_PERIOD + 1)),
            key=lambda run: (run[1], -run[0]),
        )
        if length < 3 * period:
            yield blocks[start]
            start += 1
            continue
        yield from blocks[start : start + period]
        same = "like it" if period == 1 else f"like these {period}"
        yield gap_piece(f"{length - period} more {same}", length - period)
        start += length


def _run_length(forms: Sequence[Piece], start: int, period: int) -> int:
    """How many blocks from `start` on repeat the first `period` of them, in whole periods."""
    end = start + period
    while end < len(forms) and forms[end] == forms[end - period]:
        end += 1
    return (end - start) // period * period


def _in_rows(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """The pieces in rows of about equal length; a new stage starts a new row where that wastes no more than half."""
    rows: list[list[Piece]] = [[]]
    length = 0.0
    for piece in pieces:
        if rows[-1] and (length + piece.width > ROW or (piece.starts_stage and length > 0.5 * ROW)):
            rows.append([])
            length = 0.0
        rows[-1].append(piece)
        length += piece.width + GAP
    return rows
