"""The page of protocols: it is current, and each cell is read from the configurations."""

from __future__ import annotations

from pathlib import Path

import pytest

from normless_papers.experiments.protocol import ASPECTS, protocol_of, told
from normless_papers.pages.protocols import effects, section_of, trained
from normless_papers.published import PAPERS, published

PAGE = Path(__file__).parents[2] / "docs/reproduction/protocols.md"


@pytest.mark.parametrize("paper", PAPERS)
def test_the_page_is_that_of_the_code(paper: str) -> None:
    """`normless report --protocols docs/reproduction/protocols.md` writes it anew."""
    assert section_of(paper) in PAGE.read_text(encoding="utf-8")


def test_the_page_has_the_choices_that_decide_whether_a_network_trains() -> None:
    section = effects()
    assert section in PAGE.read_text(encoding="utf-8")
    assert section.count("\n### ") == section.count("**Measured.**") == 2


def test_sentences_are_on_known_aspects() -> None:
    unknown = {name: set(entry.protocol) - set(ASPECTS) for name, entry in published().items()}
    assert not {name: aspects for name, aspects in unknown.items() if aspects}


@pytest.mark.parametrize("paper", PAPERS)
def test_every_training_has_the_sentences_of_its_text(paper: str) -> None:
    assert [name for name in trained(paper) if not published()[name].protocol] == []


def test_values_are_told_by_the_labels_that_decide_them() -> None:
    def cells(*values: str) -> list[tuple[dict[str, str], str]]:
        labels = [(depth, method) for depth in ("16", "100") for method in ("a", "b", "c")]
        return [
            ({"depth": depth, "method": method}, value) for (depth, method), value in zip(labels, values, strict=True)
        ]

    assert told(cells(*["same"] * 6)) == "same"
    assert (
        told(cells(*["net(depth=16, width=2)"] * 3, *["net(depth=100, width=2)"] * 3)) == "net(depth=16/100, width=2)"
    )
    assert told(cells(*["0.1"] * 3, *["0.2"] * 3)) == "16: 0.1; 100: 0.2"
    assert told(cells(*["x", "y", "y"] * 2)) == "a: x; b, c: y"
    assert told(cells("p", "q", "q", "q", "q", "q")) == "p; q"
    assert told(cells(*["", "y", "y"] * 2)) == "y"
    # The second sweep has no axis `norm`; with it, the norm decides.
    first = ({"norm": "post", "sweep": "a"}, "x")
    assert told([first, ({"sweep": "b"}, "y")]) == "a: x; b: y"
    assert told([first, ({"norm": "pre", "sweep": "b"}, "y")]) == "post: x; pre: y"


def test_a_protocol_says_what_is_trained() -> None:
    protocol = protocol_of("fixup/figure-4")
    assert protocol["network"] == "resnet_cifar(depth=110)"
    assert protocol["batch size"] == "128"
    assert protocol["rates"] == "0.1"
