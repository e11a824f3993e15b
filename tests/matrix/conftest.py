"""The checks of the matrix are in helper modules; their asserts explain themselves as the tests' do."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("matrix.properties", "matrix.row_properties")
