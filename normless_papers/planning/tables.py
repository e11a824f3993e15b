"""What the headline claims take on a card, as a table in Markdown."""

from __future__ import annotations

from normless_papers.pages.headline import headlines


def minutes_table() -> str:
    """Return a row for each headline claim: its artefacts, and expected minutes or what else it takes."""
    rows = ["| claim | artefacts | minutes on an H100 |", "| --- | --- | --- |"]
    for headline in sorted(headlines(), key=lambda own: (own.minutes is None, own.minutes)):
        cost = headline.to_decide if headline.minutes is None else str(headline.minutes)
        rows.append(f"| {headline.claim} | {', '.join(headline.checks)} | {cost} |")
    return "\n".join(rows)
