"""Where the papers are wrong or silent: numbers of results where there are any, and the committed page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from made_up_runs import *  # noqa: F403
