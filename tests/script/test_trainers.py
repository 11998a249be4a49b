"""Trainers of other packages: as scripts, and as what `build()` returns. What is planted in the
user's code is found there, not in the library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import line_of, nanodoc, python, report_of

TRANSFORMERS = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

class Mine(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        out = model(**inputs)
        loss = out.loss
        BAD
        return (loss, out) if return_outputs else loss

def build():
    set_seed(0)
    config = GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    data = [{"input_ids": t, "labels": t} for t in torch.randint(0, 50, (32, 8))]
    args = TrainingArguments("out", max_steps=6, per_device_train_batch_size=4, gradient_accumulation_steps=2,
                             logging_steps=3, report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True)
    return Mine(model=GPT2LMHeadModel(config), args=args, train_dataset=data)
"""
LIGHTNING = """
import torch
import lightning as L
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    def training_step(self, batch, index):
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        BAD
        self.log("loss", loss)
        return loss
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)

def build():
    L.seed_everything(0, verbose=False)
    data = TensorDataset(torch.randn(48, 6), torch.randint(0, 3, (48,)))
    trainer = L.Trainer(max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False, accumulate_grad_batches=2)
    return Module(), trainer, DataLoader(data, batch_size=8, shuffle=True)
"""
ACCELERATE = """
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

def main():
    set_seed(0)
    accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
    data = TensorDataset(torch.randn(48, 6), torch.randint(0, 3, (48,)))
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=8, shuffle=True))
    for epoch in range(2):
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = F.cross_entropy(model(x), y)
                BAD
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
    print(sum(p.double().sum().item() for p in model.parameters()))

if __name__ == "__main__":
    main()
"""
RUN = {
    TRANSFORMERS: "\nif __name__ == '__main__':\n    trainer = build()\n    trainer.train()\n    print(sum(p.double().sum().item() for p in trainer.model.parameters()))\n",
    LIGHTNING: "\nif __name__ == '__main__':\n    module, trainer, data = build()\n    trainer.fit(module, data)\n    print(sum(p.double().sum().item() for p in module.parameters()))\n",
    ACCELERATE: "",
}
BAD = "loss = loss + (loss - loss.detach()).abs().sqrt()"
NAMES = ["transformers", "lightning", "accelerate"]


def write(folder: Path, text: str, bad: str = "pass") -> Path:
    path = folder / "train.py"
    # a file with a function `build` is a recipe
    path.write_text((text + RUN[text]).replace("BAD", bad).replace("build(", "made("))
    return path


def run(folder: Path, *arguments: str) -> tuple[str, dict[str, Any]]:
    report = folder / "report.json"
    options = ["--output-format", "json", "--output", str(report)]
    done = nanodoc("run", *options, *arguments, cwd=folder)
    assert report.exists(), done.stderr
    return done.stdout, json.loads(report.read_text())


@pytest.mark.parametrize("text", [TRANSFORMERS, LIGHTNING, ACCELERATE], ids=NAMES)
def test_the_script_is_unchanged_and_its_step_found(text: str, tmp_path: Path) -> None:
    write(tmp_path, text)
    own = python("train.py", cwd=tmp_path)
    out, report = run(tmp_path, "train.py")
    assert out.splitlines()[-1] == own.stdout.splitlines()[-1]
    assert report["run"]["step_found"].endswith("replay of step 0 bitwise the same")
    assert report["findings"] == []


@pytest.mark.parametrize("text", [TRANSFORMERS, LIGHTNING, ACCELERATE], ids=NAMES)
def test_the_line_is_the_users(text: str, tmp_path: Path) -> None:
    path = write(tmp_path, text, BAD)
    _, report = run(tmp_path, "train.py")
    found = report["findings"][0]
    assert found["code"] == "ND301"
    assert found["culprit"]["location"]["file"] == "train.py"
    assert found["culprit"]["location"]["line"] == line_of(path, BAD)


@pytest.mark.parametrize("text", [TRANSFORMERS, LIGHTNING], ids=NAMES[:2])
def test_build_returns_the_trainer(text: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(text.replace("BAD", "pass"))
    report = report_of(nanodoc("run", "train.py:build", "--output-format", "json", cwd=tmp_path))
    assert report["run"]["step_found"].endswith("replay of step 0 bitwise the same")
    # of 12 batches: in the first the optimizer did not step, and the loop was not known yet
    assert report["run"]["steps_run"] == 11
    refused = nanodoc("check-grad-graph", "train.py:build", cwd=tmp_path)
    assert refused.returncode == 2
    assert "this command needs a recipe" in refused.stderr


def test_a_lightning_module_needs_data(tmp_path: Path) -> None:
    text = LIGHTNING.replace("BAD", "pass").replace(
        "return Module(), trainer, DataLoader(data, batch_size=8, shuffle=True)", "return Module()"
    )
    (tmp_path / "train.py").write_text(text)
    done = nanodoc("run", "train.py:build", cwd=tmp_path)
    assert done.returncode == 2
    assert "return (module, loader)" in done.stderr


CALLBACKS = {
    TRANSFORMERS: "from nanodoc.integrations.transformers import NanodocCallback\ntrainer = build()\ncallback = NanodocCallback()\ntrainer.add_callback(callback)\ntrainer.train()\n",
    LIGHTNING: "from nanodoc.integrations.lightning import NanodocCallback\nmodule, trainer, data = build()\ncallback = NanodocCallback()\ntrainer.callbacks.append(callback)\ntrainer.fit(module, data)\n",
}
AFTER = "print(callback.report.verdict, callback.report.run.step_found)\n"


@pytest.mark.parametrize("text", [TRANSFORMERS, LIGHTNING], ids=NAMES[:2])
def test_the_callback(text: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(text.replace("BAD", "pass") + CALLBACKS[text] + AFTER)
    done = python("train.py", cwd=tmp_path)
    assert done.stdout.splitlines()[-1].startswith("nothing found step")
    assert done.stdout.splitlines()[-1].endswith("replay of step 0 bitwise the same")
    path.write_text(text.replace("BAD", BAD) + CALLBACKS[text])
    done = python("train.py", cwd=tmp_path)
    assert done.returncode == 1
    where = f"train.py:{line_of(path, BAD)}"
    assert f"--> {where}" in done.stderr
    told = done.stderr.strip().splitlines()[-1]
    assert told.startswith("nanodoc.script.states.TrainingIsSick: critical[ND301]")
    assert told.endswith(where)
    assert done.stderr.count("critical[ND301]: ") == 2  # the report and the exception


def test_the_data_of_a_trainers_loop_are_made_again(tmp_path: Path) -> None:
    """The trainer's module is not imported anew then, and its marks have the numbers of before."""
    spoiled = "\ndef scaled(x):\n    return (x - x) / (0 * x)  # made\n\ndef build():"
    text = LIGHTNING.replace("\ndef build():", spoiled, 1)
    text = text.replace(
        "TensorDataset(torch.randn(48, 6)", "TensorDataset(scaled(torch.randn(48, 6))"
    )
    path = tmp_path / "train.py"
    path.write_text((text + RUN[LIGHTNING]).replace("BAD", "pass").replace("build(", "made("))
    _, report = run(tmp_path, "train.py")
    found = report["findings"][0]
    assert found["code"] == "ND101"
    assert found["culprit"]["location"]["line"] == line_of(path, "# made")
