"""Scripts that make several trainings, steps that a library's loop calls, and trained tensors that
belong to no module."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from nanodoc.report.markdown import render_markdown
from nanodoc.report.page.render import render_html
from nanodoc.report.terminal import render
from tests.helpers import line_of, nanodoc
from tests.script.styles import HEAD
from tests.script.test_styles import _our_own_main, bare, watched

__all__ = ["_our_own_main"]

FOLDS = """
import sys

def fit(rate, bad):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for number in range(20):  # step
        chosen = torch.randint(0, 48, (8,))
        out = model(X[chosen])
        if bad and number == 12:
            out = (out - out).log()
        loss = F.cross_entropy(out, Y[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    digest(model)

fit(0.1, False)  # a training
fit(0.05, False)  # a training
fit(0.1, "bad" in sys.argv)  # a training
"""
PHASES = """
import sys

encoder, decoder, head = nn.Linear(6, 8), nn.Linear(8, 6), nn.Linear(8, 3)
optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-2)
for number in range(30):  # a training
    x = X[torch.randint(0, 48, (8,))]
    loss = (decoder(encoder(x).relu()) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=1e-2)
for number in range(40):  # step, a training
    chosen = torch.randint(0, 48, (8,))
    out = head(encoder(X[chosen]).relu())
    if "bad" in sys.argv and number == 30:
        out = (out - out).log()
    loss = F.cross_entropy(out, Y[chosen])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
digest(encoder)
digest(head)
"""
PLAYERS = """
import sys

generator, critic = nn.Linear(4, 6), nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(), nn.Linear(8, 1))
of_generator = torch.optim.RMSprop(generator.parameters(), lr=1e-3)
of_critic = torch.optim.RMSprop(critic.parameters(), lr=1e-3)

def train_critic(real):
    for _ in range(3):
        fake = generator(torch.randn(8, 4)).detach()
        loss = critic(fake).mean() - critic(real).mean()
        of_critic.zero_grad()
        loss.backward()
        of_critic.step()

def train_generator(number):
    fake = generator(torch.randn(8, 4))
    if "bad" in sys.argv and number == 12:
        fake = (fake - fake).log()
    loss = -critic(fake).mean()
    of_generator.zero_grad()
    loss.backward()
    of_generator.step()

for epoch in range(2):
    for number in range(20):  # step
        train_critic(X[torch.randint(0, 48, (8,))])
        train_generator(number)
digest(generator)
digest(critic)
"""
LIBRARY = """
class Loop:
    def __init__(self, step):
        self.step = step

    def run(self, data, epochs):
        for _ in self._steps(data, epochs):
            pass

    def _steps(self, data, epochs):
        for epoch in range(epochs):
            for batch in data:
                yield self.step(self, batch)
"""
STEP = """
import sys
sys.path.append(FOLDER)
from a_library import Loop

model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
seen = []

def train_step(loop, batch):  # step
    '''Documented.'''
    x, y = batch
    seen.append(len(seen))
    optimizer.zero_grad()
    out = model(x)
    if "bad" in sys.argv and len(seen) == 7:
        out = (out - out).log()
    loss = F.cross_entropy(out, y)
    loss.backward()
    optimizer.step()
    return loss.item()

Loop(train_step).run(DataLoader(TensorDataset(X, Y), batch_size=8), 3)
print(len(seen), train_step.__doc__)
digest(model)
"""
BY_HAND = """
import sys

W1 = torch.randn(6, 8) * 0.3
b1 = torch.zeros(8)
W2 = torch.randn(8, 3) * 0.3
parameters = [W1, b1, W2]
for p in parameters:
    p.requires_grad = True
for number in range(20):  # step
    chosen = torch.randint(0, 48, (8,))
    out = torch.tanh(X[chosen] @ W1 + b1) @ W2
    if "bad" in sys.argv and number == 12:
        out = (out - out).log()
    loss = F.cross_entropy(out, Y[chosen])
    for p in parameters:
        p.grad = None
    loss.backward()
    for p in parameters:
        p.data += -0.1 * p.grad
print([p.sum().item() for p in parameters])
"""
WARMED_UP = """
import sys

random.seed(0)
model, target = Net(), Net()
target.load_state_dict(model.state_dict())
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
memory = []
for number in range(90):
    memory.append(torch.randint(0, 48, (8,)))
    if number >= 60:  # step
        chosen = memory[random.randrange(len(memory))]
        with torch.no_grad():
            wanted = target(X[chosen])
        out = model(X[chosen])
        if "bad" in sys.argv:
            out = (out - out).log()
        loss = F.mse_loss(out, 0.9 * wanted) + 0.1 * F.cross_entropy(out, Y[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for ours, theirs in zip(model.parameters(), target.parameters()):
            theirs.data.copy_(0.5 * ours.data + 0.5 * theirs.data)
digest(model, target)
"""
CONTINUES = (
    WARMED_UP.replace("number >= 60:  # step", "number < 60: continue")
    .replace("\n        ", "\n    ")
    .replace("(memory))]", "(memory))]  # step")
)
CUT_OFF = """
def fit(number, steps):
    encoder, head = nn.Linear(6, 8), nn.Linear(8, 3)
    optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=1e-2)
    for _ in range(steps):
        chosen = torch.randint(0, 48, (8,))
        hidden = encoder(X[chosen]).relu()
        if CUT:
            hidden = hidden.detach()
        loss = F.cross_entropy(head(hidden), Y[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

fit(1, 30)
fit(2, 40)
"""
SCRIPTS = {
    "a long warm-up": WARMED_UP,
    "a long warm-up, and continue": CONTINUES,
    "folds": FOLDS,
    "phases": PHASES,
    "players": PLAYERS,
    "a library's loop": STEP,
    "by hand": BY_HAND,
}


@pytest.fixture(autouse=True)
def _our_errors_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of nanodoc's own would only end the watching."""
    monkeypatch.setenv("NANODOC_DEBUG", "1")


@pytest.fixture
def written(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    (tmp_path / "libraries").mkdir()
    # a folder of that name is not the script's own: its modules get no marks
    folder = tmp_path / "libraries" / "site-packages"
    folder.mkdir()
    (folder / "a_library.py").write_text(LIBRARY)
    path = tmp_path / "train.py"
    text = HEAD.replace("BAD", "pass") + SCRIPTS[request.param]
    path.write_text(text.replace("FOLDER", repr(str(folder))))
    return path


@pytest.mark.parametrize("written", SCRIPTS, indirect=True)
def test_the_script_is_watched_and_nothing_changes(
    written: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, status = bare(written)
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", [str(written)])
    report = watched(written)
    assert capsys.readouterr().out == out.replace("at exit\n", "")
    assert report.script_status == status
    line = line_of(written, "# step")
    assert report.run.step_found == f"step train.py:{line}, replay of step 0 bitwise the same"
    assert [finding.code for finding in report.findings] == []
    assert "another training loop" not in dict(report.not_checked)


@pytest.mark.parametrize("written", SCRIPTS, indirect=True)
def test_what_goes_wrong_late_is_found_at_its_line(written: Path) -> None:
    report = watched(written, "bad")
    found = report.findings[0]
    assert found.code == "ND206"
    assert found.culprit.location is not None
    assert found.culprit.location.line == line_of(written, ".log()")
    assert len(report.findings) == 1


@pytest.mark.parametrize("written", ["folds", "phases"], indirect=True)
def test_the_report_tells_of_every_training(written: Path) -> None:
    report = watched(written, "bad")
    told = report.run.trainings
    assert len(told) == written.read_text().count("a training")
    assert all(": nothing found" in line for line in told[:-1])
    assert ": critical (this one)" in told[-1]
    assert "training 1" in render(report)


@pytest.mark.parametrize("written", ["phases"], indirect=True)
def test_the_snapshot_of_a_later_training_is_replayed_there(written: Path) -> None:
    done = nanodoc("run", written.name, "--", "bad", cwd=written.parent)
    assert done.returncode == 1, done.stderr
    snapshot = next(written.parent.glob("nanodoc-out/nanodoc-step*.pt"))
    again = nanodoc("replay", str(snapshot.relative_to(written.parent)), cwd=written.parent)
    assert again.returncode == 1, again.stderr
    assert f"train.py:{line_of(written, '.log()')}" in again.stdout + again.stderr


@pytest.mark.parametrize("first", [True, False])
def test_the_curves_are_those_of_the_training_that_is_sick(tmp_path: Path, first: bool) -> None:
    path = tmp_path / "train.py"
    path.write_text(HEAD.replace("BAD", "pass") + CUT_OFF.replace("CUT", f"number == {2 - first}"))
    report = watched(path)
    at = 0 if first else 1
    lengths = (30, 39)  # the second one is found at its second step
    assert [f.code for f in report.findings][:1] == ["ND501"]
    assert ["(this one)" in line for line in report.run.trainings] == [at == 0, at == 1]
    assert report.vitals.steps == len(report.vitals.losses) == lengths[at]
    history = Path(report.artifacts["history"] or "").read_text().splitlines()
    assert len([line for line in history if '"loss"' in line]) == lengths[at]
    for text in (render(report), render_markdown(report), render_html(report)):
        for line in report.run.trainings:
            assert line.split(":")[-1].strip(" ()") in text
    assert f"{lengths[at]} steps" in render_markdown(report)
