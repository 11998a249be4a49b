"""Where a function gives what it has computed several times."""

from __future__ import annotations

from pathlib import Path

import pytest

from nanodoc.trace.repeating import lines_repeating

HEAD = "def views(x, n, hidden):\n    k = n // 2\n    view, other = aug(x), aug(x)\n    view = aug(x)\n"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("return view, view", True),
        ("return [view, view]", True),
        ("return [view for _ in range(n)]", True),
        ("return torch.cat([view, view])", True),
        ("return view, other", False),
        ("return [aug(x) for _ in range(n)]", False),
        ("return [v for v in aug(x)]", False),
        ("return [hidden for _ in range(n)]", False),
        ("return torch.zeros((k, k))", False),
        ("return x, x", False),
    ],
)
def test_a_value_given_twice(tmp_path: Path, line: str, found: bool) -> None:
    file = tmp_path / "train.py"
    file.write_text(f"{HEAD}    {line}\n")
    assert [span.line for span in lines_repeating(str(file))] == ([5] if found else [])
