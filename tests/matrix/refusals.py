"""Which networks of the gallery a scheme refuses, and why: `refusals.txt`, which `make refusals` writes.

A line is a reason, without modules and numbers, and the rows that are refused for it.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path

from gallery import ROWS

from matrix.case import Case, Subject
from matrix.scheme_facts import SCHEMES
from normless.errors import NormlessError

PATH = Path(__file__).with_name("refusals.txt")
Table = dict[str, dict[str, str]]


def reason(error: NormlessError) -> str:
    """The reason of a refusal, without what differs from network to network."""
    sentence = " ".join(str(error).split())
    sentence = re.split(r"is not possible(?: at [^:]*?(?:\([^)]*\))?| in this \w+)?: ", sentence)[-1]
    # Names, calls, classes, paths, operators in forward code, sizes and numbers.
    sentence = re.sub(
        r"'[^']*'|\"[^\"]*\"|\b[A-Z]\w*\([^)]*\)|\b(?=\w*[A-Z]\w*[A-Z])\w+\b|\b[A-Z]\w+\b(?!\.? )", "…", sentence
    )
    sentence = re.sub(r"[\w.#]*:[\w.]+|\b\w+(?:\.[\w#]+)+|[-+]?\d[\d.e×→/-]*", "…", sentence)
    sentence = re.sub(r"\ban? (?:instance norm |conv |linear )?…( groups)?", "a …", sentence)
    return re.sub(r"(?:…[ ,;/]*(?:and )?)+…", "…", sentence)[:160].strip(" .")


def named_module(error: NormlessError, case: Case) -> bool:
    """Whether the refusal names a module or a block of the network, or the network by its class."""
    words = {word.strip(".,;()'\"`") for word in str(error).split()}
    words |= {word.rstrip(":") for word in words}
    found = case.subject.found
    names = {path for path, _ in case.subject.model.named_modules() if path} | {block.name for block in found.walk()}
    names |= {layer.path for layer in found.layers()} | {name for name, _ in case.subject.model.named_parameters()}
    return bool(words & names) or type(case.subject.model).__name__ in words


@cache
def listed() -> Table:
    """The reasons by scheme and row."""
    table: Table = {text: {} for text in SCHEMES}
    texts: list[str] = []
    for line in PATH.read_text(encoding="utf-8").splitlines()[1:] if PATH.exists() else ():
        if line.startswith("== "):
            texts = line.removeprefix("== ").split(" and ")
        elif line:
            why, _, rows = line.rpartition(" | ")
            for text in texts:
                table[text] |= dict.fromkeys(rows.split("; "), why)
    return table


def write(table: Table) -> None:
    """Write the file."""
    lines = ["Reasons for which schemes refuse rows of the gallery; written by `make refusals`."]
    alike: dict[tuple[tuple[str, str], ...], list[str]] = defaultdict(list)
    for scheme, reasons in table.items():
        alike[tuple(sorted(reasons.items()))].append(scheme)
    for pairs, texts in alike.items():
        by_reason: dict[str, list[str]] = defaultdict(list)
        for name, why in pairs:
            by_reason[why].append(name)
        lines += ["", f"== {' and '.join(texts)}"] if pairs else []
        lines += [f"{why} | {'; '.join(names)}" for why, names in sorted(by_reason.items())]
    PATH.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main(names: list[str]) -> None:
    """Find the refusals of the rows that are named, or of all but those of the zoo."""
    table = listed()
    for row in ROWS.values():
        if row.size == "zoo" or (names and row.name not in names):
            continue
        subject = Subject(row)
        for text, scheme in SCHEMES.items():
            table[text].pop(row.name, None)
            outcome = Case(subject, scheme).outcome
            if isinstance(outcome, NormlessError):
                table[text][row.name] = reason(outcome)
    write(table)


if __name__ == "__main__":
    import logging
    import warnings

    logging.disable()
    warnings.simplefilter("ignore")
    main(sys.argv[1:])
