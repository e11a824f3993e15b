"""The checks of the zoo live in a helper module; their asserts explain themselves as those of the tests do."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("zoo_checks")
