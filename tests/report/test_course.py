"""Vital signs that agree with what the script prints, and a verdict that clears nothing: real
scripts, and the text that a user reads."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.helpers import nanodoc

ACCUMULATES = """
import torch
from torch import nn
torch.manual_seed(0)
net = nn.Linear(8, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(40):
    x = torch.randn(16, 8)
    loss = (net(x) - x.sum(1, keepdim=True)).square().mean() / 4
    loss.backward()
    if step % 4 == 3:
        norm = nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        print(loss.item(), norm.item())
        optimizer.step()
        optimizer.zero_grad()
"""

NO_BACKWARD = """
import torch
from torch import nn
torch.manual_seed(0)
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(30):
    x = torch.randn(16, 4)
    loss = (net(x) - x.sum(1, keepdim=True)).square().mean()
    for p, g in zip(net.parameters(), torch.autograd.grad(loss, list(net.parameters()))):
        p.grad = g
    optimizer.step()
"""

CLOCK = """
import time, torch
from torch import nn
class Noise(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x + 1e-3 * (time.perf_counter_ns() % 1000)
    @staticmethod
    def backward(ctx, grad):
        return grad
torch.manual_seed(0)
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(30):
    x = torch.randn(16, 4)
    loss = (Noise.apply(net(x)) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("the end")
"""


def said(folder: Path, text: str, *options: str) -> str:
    (folder / "train.py").write_text(text)
    done = nanodoc("run", *options, "train.py", cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stderr


def row(text: str, name: str) -> tuple[float, float, str]:
    """(first, last, what stands in brackets) of a row of the vital signs."""
    text = re.sub(r"\n {4}(?=\S)", " ", text)
    found = re.search(
        rf"^  {re.escape(name)} +\S+  (\S+) → (\S+)(?:  \((.*)\))?$", text, re.MULTILINE
    )
    assert found is not None, text
    return float(found[1]), float(found[2]), found[3] or ""


def test_accumulation_and_clipping_are_labelled(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ACCUMULATES)
    done = nanodoc("run", "train.py", cwd=tmp_path)
    text, printed = (
        done.stderr,
        [tuple(map(float, line.split())) for line in done.stdout.split("\n")[:-1]],
    )
    assert re.search(r"steps +\d+ \(\d+ optimizer steps\)", text)
    loss = row(text, "loss")
    assert (round(loss[1], 3), loss[2]) == (round(printed[-1][0], 3), "per micro-batch")
    before = row(text, "unclipped norm")
    assert round(before[1], 3) == round(printed[-1][1], 3)
    after = row(text, "gradient norm")
    assert after[1] <= 0.5001
    assert after[2].endswith("after clipping, per micro-batch")


def test_a_loss_that_was_not_seen_is_not_zero(tmp_path: Path) -> None:
    text = said(tmp_path, NO_BACKWARD)
    assert "  loss           not observed: no backward pass began at a loss\n" in text
    assert "0 → 0" not in text


def test_nothing_found_says_what_was_asked(tmp_path: Path) -> None:
    text = re.sub(r"\n {2}(?=\S)", " ", said(tmp_path, ACCUMULATES))
    assert "\nverdict: nothing found (" in text
    assert "healthy" not in text
    assert "checked: finite losses, gradients and weights, gradient flow, " in text
    assert "GradScaler" not in text
    assert not re.search(r"ND\d+ to|\d+ rules", text)
    assert "fewer than" not in text


def test_a_short_run_says_so(tmp_path: Path) -> None:
    text = said(tmp_path, ACCUMULATES.replace("range(40)", "range(12)"))
    assert "steps); fewer than 20 steps: what takes longer to show was not seen\n" in text.replace(
        "\n  ", " "
    )


def test_steps_of_a_script_say_what_did_not_run(tmp_path: Path) -> None:
    text = said(tmp_path, CLOCK.replace("Noise.apply(net(x))", "net(x)"), "--steps", "7").replace(
        "\n  ", " "
    )
    assert "the rest of the script: --steps 7 ended it in the loop at train.py:14" in text


def test_options_of_recipes_say_that_they_do_nothing(tmp_path: Path) -> None:
    text = said(tmp_path, ACCUMULATES, "--seed", "3", "--device", "cpu", "--steps", "4")
    assert text.startswith("nanodoc: --device and --seed do nothing for a script")


def test_a_step_that_does_not_reproduce_is_one_reason_with_its_numbers(tmp_path: Path) -> None:
    text = " ".join(said(tmp_path, CLOCK).split())
    assert re.search(
        r"not checked: experiments and fixes, .*: the first step did not reproduce when it was "
        r"re-run: its loss was \S+ and then \S+ \([+-]\de[+-]\d\d\)",
        text,
    )
    assert "No step" not in text


def test_files_lie_in_one_folder_that_git_ignores(tmp_path: Path) -> None:
    text = said(tmp_path, ACCUMULATES)
    assert "files in nanodoc-out: history.jsonl\n" in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["nanodoc-out", "train.py"]
    assert (tmp_path / "nanodoc-out" / ".gitignore").read_text() == "# made by nanodoc\n*\n"
    said(tmp_path, ACCUMULATES, "--snapshot-dir", "elsewhere")
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == ["history.jsonl"]


def test_the_form_of_a_report_by_the_suffix_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ACCUMULATES)
    starts = {
        "a.html": "<!doctype html>",
        "a.json": "{",
        "a.sarif": "{",
        "a.md": "<!-- nanodoc",
        "a.xml": "<?xml",
    }
    for name, start in starts.items():
        nanodoc("run", "train.py", "--output", name, "--", cwd=tmp_path)
        assert (tmp_path / name).read_text().lower().startswith(start), name
    assert json.loads((tmp_path / "a.json").read_text())["schema"] == 2
    assert json.loads((tmp_path / "a.json").read_text())["verdict"] == "nothing found"
    assert json.loads((tmp_path / "a.sarif").read_text())["version"] == "2.1.0"
    nanodoc(
        "run", "train.py", "--output", "a.txt", "--output-format", "concise", "--", cwd=tmp_path
    )
    assert (tmp_path / "a.txt").read_text().startswith("verdict: nothing found (")


def test_arguments_on_both_sides_of_the_dashes(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys\nprint(sys.argv[1:])\n" + ACCUMULATES)
    done = nanodoc("run", "train.py", "--steps", "5", "--", "--lr", "--", "3", cwd=tmp_path)
    assert done.stdout.splitlines()[0] == "['--lr', '--', '3']"
    assert "--steps 5 ended it" in " ".join(done.stderr.split())
    done = nanodoc("run", "train.py", "--steps", "5", cwd=tmp_path)
    assert done.stdout.splitlines()[0] == "['--steps', '5']"
    (tmp_path / "pkg").mkdir()
    (tmp_path / "train.py").rename(tmp_path / "pkg" / "train.py")
    done = nanodoc("run", "-m", "pkg.train", "--steps", "5", "--", "-x", cwd=tmp_path)
    assert done.stdout.splitlines()[0] == "['-x']"


def test_a_script_without_optimizer_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\nprint(torch.ones(2))\n")
    done = nanodoc("run", "train.py", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == (
        "nanodoc: no optimizer step was seen, so nothing was checked; if a library runs your "
        "loop, use a recipe: nanodoc init train.py\n"
    )


def test_a_report_in_a_file_is_announced(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ACCUMULATES)
    done = nanodoc("run", "train.py", "--output", "r.html", "--", cwd=tmp_path)
    assert done.stderr == "nanodoc: nothing found; the report is in r.html\n"
    done = nanodoc("run", "train.py", "--output", "r.html", "--quiet", "--", cwd=tmp_path)
    assert done.stderr == ""


def test_options_that_end_a_run_early_end_a_script_too(tmp_path: Path) -> None:
    text = said(tmp_path, ACCUMULATES, "--abort-after-step", "6").replace("\n  ", " ")
    assert "the rest of the script: --steps 7 ended it" in text
    (tmp_path / "train.py").write_text(ACCUMULATES)
    done = nanodoc("run", "--overfit-batch", "train.py", cwd=tmp_path)
    assert done.returncode == 2
    assert "only a recipe lets it choose: nanodoc init train.py writes one" in done.stderr
