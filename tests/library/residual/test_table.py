"""The table of a map: every block and what is in it, in words, from maps written by hand."""

from __future__ import annotations

import re

import pytest

from normless.residual import Layer, ResidualBlock, ResidualMap
from normless.residual.blocks import Unresolved
from normless.residual.table import format_blocks, format_map


def _weight(path: str, **more: bool) -> Layer:
    return Layer(path, "weight", description=f"linear {path}", **more)


def _norm(path: str, gamma: bool = True) -> Layer:
    return Layer(path, "norm", gamma=f"{path}.weight" if gamma else None, description="LayerNorm")


def _row(text: str, name: str) -> str:
    """The cells of the row that names a block."""
    rows = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in text.splitlines()]
    (row,) = [cells for cells in rows if name in cells[:2]]
    return " | ".join(row)


def test_a_row_has_number_name_m_branch_skip_path_and_what_follows_the_sum() -> None:
    block = ResidualBlock(
        "b",
        branch_layers=(_weight("f"), _norm("n"), Layer("b:relu", "activation", description="relu"), _weight("g")),
        skip_layers=(_weight("s"), _norm("d")),
        after_sum=(Layer("after", "activation", description="ReLU"),),
        identity_skip=False,
    )
    text = format_blocks(ResidualMap((block,), stem_layers=(_norm("0"),), head_layers=(_weight("h"),)))
    branch, skip = "linear f → LayerNorm (γ last) → relu → linear g", "linear s → LayerNorm (γ down)"
    assert _row(text, "b") == f"1 | b | 2 | {branch} | {skip} | ReLU"
    assert _row(text, "stem") == "stem | LayerNorm (γ stem)"
    assert _row(text, "head") == "head | linear h"


def test_gates_scale_and_dropout_are_shown_and_gates_are_in_parentheses() -> None:
    block = ResidualBlock(
        "b",
        branch_layers=(
            _weight("f"),
            _weight("g1", gating=True),
            _weight("g2", gating=True),
            _weight("h"),
            Layer("b:gamma", "scale", gamma="b.gamma", description="layer scale"),
            Layer("drop", "dropout", description="Dropout"),
        ),
        chain=2,
    )
    text = format_blocks(ResidualMap((block,)))
    branch = "linear f → (linear g1 → linear g2) → linear h → layer scale → Dropout"
    assert _row(text, "b") == f"1 | b | 2 | {branch} | identity"


def test_what_could_not_be_placed_is_listed() -> None:
    text = format_map(ResidualMap((), unresolved=(Unresolved("a.b", "the reason"), Unresolved("", "another"))))
    assert text.splitlines()[-3:] == ["unresolved", "  a.b: the reason", "  the network itself: another"]
    assert "unresolved" not in format_map(ResidualMap(()))


def test_the_middle_of_what_is_very_long_is_left_out() -> None:
    long = tuple(_weight(f"l{index}") for index in range(100))
    blocks = tuple(ResidualBlock(f"b{index}", branch_layers=long) for index in range(50))
    text = format_blocks(ResidualMap(blocks), width=4000)
    assert _row(text, "…") == "… | 10 more blocks"
    assert _row(text, "b19").startswith("20 | ")
    assert _row(text, "b30").startswith("31 | ")
    assert not any(f"b{index}" in text.split() for index in range(20, 30))
    assert "→ linear l19 → … 60 more layers … → linear l80 →" in text


def test_no_line_is_wider_than_asked_and_lines_break_behind_arrows_only() -> None:
    layers = (_norm("n"), *(_weight(f"l{index}") for index in range(30)))
    for width in range(60, 100):
        text = format_blocks(ResidualMap((ResidualBlock("b", branch_layers=layers),)), width=width)
        assert max(map(len, text.splitlines())) <= width
        assert "LayerNorm (γ other)" in text or "LayerNorm (γ last)" in text
        assert all(f"linear l{index}" in text for index in range(30))
        assert not any(line.strip().startswith("→") for line in text.splitlines())


@pytest.mark.parametrize("width", range(45, 72, 3))
def test_a_role_is_whole_in_a_table_too_wide_for_its_names(width: int) -> None:
    layers = (_norm("n"), _weight("longer_than_most_names"), _norm("d"))
    block = ResidualBlock("b", branch_layers=layers, skip_layers=(_norm("s"), _weight("w")), identity_skip=False)
    text = format_blocks(ResidualMap((block,)), width=width)
    assert max(map(len, text.splitlines())) <= width
    assert text.count("(γ") == 3 == len(re.findall(r"\(γ (?:last|other|down)\)", text))
