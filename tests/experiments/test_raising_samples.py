"""An exception is laid at the samples that raise it alone, where the others run without them."""

from __future__ import annotations

from pathlib import Path

import pytest

from nanodoc.config import Config
from nanodoc.diagnosis.finding import Finding
from nanodoc.pipeline.run import run_training

TRAIN = '''\
import torch
from torch import nn

CALLS = []


def boxes(*swapped, rows=8):
    """Corners (x0, y0, x1, y1), some of them the wrong way round."""
    found = torch.tensor([0.1, 0.2, 0.6, 0.9]).repeat(rows, 1)
    found[list(swapped)] = torch.tensor([0.6, 0.2, 0.1, 0.9])
    return found


def area(box):
    if not bool((box[:, 2:] >= box[:, :2]).all()):
        raise ValueError("the second corner lies before the first")
    return (box[:, 2:] - box[:, :2]).prod(1)


def loss_of(model, box):
    return (model(box).squeeze(1) - area(box)).abs().mean()


def made(data, loss=loss_of, norm=False, **more):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), *([nn.BatchNorm1d(6)] if norm else []), nn.ReLU(), nn.Linear(6, 1))
    return {"model": model, "data": data, "loss_fn": loss, "optimizer": torch.optim.Adam(model.parameters(), lr=0.1), "max_steps": 1, **more}


def swapped():
    return made([boxes(BAD)], norm=NORM)


def own_step():
    recipe = made([boxes(6)])

    def train_step(model, box):
        recipe["optimizer"].zero_grad()
        loss = loss_of(model, box)
        loss.backward()
        recipe["optimizer"].step()
        return loss

    return {**{key: value for key, value in recipe.items() if key != "loss_fn"}, "train_step": train_step}


def accumulated():
    return made([boxes(), boxes(2)], accumulate=2)


def every_sample():
    def loss(model, box):
        with open("calls.txt", "a") as file:
            file.write(".")
        return nn.functional.linear(model(box), torch.ones(1, 2)).mean()

    return made([boxes(rows=64)], loss)


def whole_batch():
    def loss(model, box):
        return loss_of(model, box) + torch.ones(7).mul(torch.ones(len(box))).sum()

    return made([boxes()], loss)


def part_raises_another():
    def loss(model, box):
        if len(box) < 8:
            raise KeyError("only whole batches")
        return loss_of(model, box)

    return made([boxes(4)], loss)
'''


def finding(folder: Path, name: str, text: str = TRAIN) -> Finding:
    (folder / "train.py").write_text(text)
    return run_training(
        f"{folder / 'train.py'}:{name}", Config(device="cpu", snapshot_dir=str(folder))
    ).findings[0]


@pytest.mark.parametrize("bad", [(3,), (0, 5), (1, 3, 7)])
@pytest.mark.parametrize("norm", [False, True])
def test_the_samples_that_raise_alone(tmp_path: Path, bad: tuple[int, ...], norm: bool) -> None:
    found = finding(tmp_path, "swapped", TRAIN.replace("BAD", f"*{bad}").replace("NORM", str(norm)))
    assert (found.code, found.culprit.samples) == ("ND709", bad)
    assert [row["outcome"] for row in found.experiments] == ["fails", "passes"]
    # with BatchNorm no sample can be run alone
    assert ("with 2 that pass" in found.experiments[0]["name"]) == norm
    assert found.fixes[-1].verified


def test_a_train_step_of_the_users_own(tmp_path: Path) -> None:
    assert finding(tmp_path, "own_step").culprit.samples == (6,)


def test_of_several_micro_batches_the_one_that_raises(tmp_path: Path) -> None:
    found = finding(tmp_path, "accumulated")
    assert found.culprit.samples == (2,)
    assert found.experiments[0]["name"] == "micro-batch 1, sample 2 alone"


def test_what_every_sample_raises_is_no_samples_fault_and_is_soon_known(tmp_path: Path) -> None:
    found = finding(tmp_path, "every_sample")
    assert (found.code, found.culprit.samples, found.experiments) == ("ND705", (), ())
    # some of them look for an earlier call that has caused it
    assert len((tmp_path / "calls.txt").read_text()) < 40


@pytest.mark.parametrize("name", ["whole_batch", "part_raises_another"])
def test_what_only_the_whole_batch_raises_is_no_samples_fault(tmp_path: Path, name: str) -> None:
    found = finding(tmp_path, name)
    assert (found.phase, found.culprit.samples, found.experiments) == ("forward", (), ())


GRAPHS = '''
from torch.utils.data import DataLoader


def joined(graphs):
    """One graph of several: nodes behind each other, edges by the nodes' new numbers."""
    starts = [0]
    for nodes, _ in graphs:
        starts.append(starts[-1] + len(nodes))
    return torch.cat([nodes for nodes, _ in graphs]), torch.cat([edges + start for (_, edges), start in zip(graphs, starts)], 1)


def graphs():
    torch.manual_seed(1)
    data = [(torch.rand(4 + i % 3, 4), torch.tensor([[0, 1], [1, 2]])) for i in range(12)]
    data[10] = (data[10][0], torch.tensor([[0, 1], [1, 40]]))
    loader = DataLoader(data, batch_size=4, collate_fn=joined)
    return made(loader, lambda model, graph: model(graph[0])[graph[1][1]].pow(2).mean()) | {"max_steps": 3}
'''


def test_of_graphs_joined_into_one_the_samples_are_drawn_again(tmp_path: Path) -> None:
    found = finding(tmp_path, "graphs", TRAIN + GRAPHS)
    assert (found.code, found.step, found.culprit.samples, found.culprit.dataset_indices) == (
        "ND102",
        2,
        (2,),
        (10,),
    )
    assert [row["outcome"] for row in found.experiments] == ["fails", "passes"]


def test_a_collate_function_that_wants_whole_batches_tells_nothing(tmp_path: Path) -> None:
    whole = GRAPHS.replace(
        "    starts = [0]\n",
        '    if len(graphs) < 4:\n        raise RuntimeError("whole batches only")\n    '
        "starts = [0]\n",
    )
    found = finding(tmp_path, "graphs", TRAIN + whole)
    assert (found.code, found.step, found.culprit.samples, found.experiments) == (
        "ND102",
        2,
        (),
        (),
    )
