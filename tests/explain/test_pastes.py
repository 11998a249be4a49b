"""Real pastes: which exception is the root, and which line is the user's own. Each file was printed
by the program it names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nanodoc.explain.answer import answer
from nanodoc.explain.paste import parse
from nanodoc.report.explained import render

PASTES = Path(__file__).parent / "pastes"


@pytest.mark.parametrize(
    ("name", "entry", "place", "code"),
    [
        (
            "fit",
            "label-out-of-range",
            "fit.py:8 training_step",
            "return torch.nn.functional.cross_entropy(self.fc(x), y)",
        ),
        ("trainer", "model-without-loss", "trainer.py:9 main", "trainer.train()"),
        (
            "torchrun",
            None,
            "train.py:4 step",
            'raise ValueError(f"labels of shard {rank} are missing")',
        ),
        ("data", "index-out-of-bounds", "data.py:11 __getitem__", "return clip[index * 4]"),
        ("chain", "matmul-shapes", "chain.py:11 forward", "return self.head(x)"),
        ("group", "reshape-count", "group.py:4 shard", "return torch.randn(n, 3).view(5, 2)"),
        ("spawn", "in-place-on-leaf", "spawn.py:5 worker", "weight += rank"),
        ("cell", "matmul-shapes", "Cell In[1]:3 None", "out = model(x)"),
        (
            "richly",
            "label-out-of-range",
            "richly.py:4 step",
            "return torch.nn.functional.cross_entropy(x, torch.tensor([0, 7]))",
        ),
        ("anomaly", "nan-in-backward-root", "anomaly.py:4 f", "return (torch.sqrt(x) * 0.0).sum()"),
    ],
)
def test_the_root_and_the_users_line_of_a_real_paste(
    name: str, entry: str | None, place: str, code: str
) -> None:
    found = answer((PASTES / f"{name}.txt").read_text(encoding="utf-8"))
    assert (found.explanation.id if found.explanation else None) == entry
    assert found.frame is not None
    assert f"{Path(found.frame.file).name}:{found.frame.line} {found.frame.function}" == place
    assert found.frame.code == code


def test_the_rank_that_failed_first_is_explained_and_not_the_one_that_lost_its_peer() -> None:
    found = answer((PASTES / "torchrun.txt").read_text(encoding="utf-8"))
    assert found.raised is not None
    assert found.raised.rank == 1
    assert found.raised.headline == "ValueError: labels of shard 1 are missing"
    assert any("Connection closed by peer" in line for line in found.others)


def test_a_rank_aborted_at_its_exit_is_no_failure_of_the_training() -> None:
    found = answer((PASTES / "at_exit.txt").read_text(encoding="utf-8"))
    assert found.explanation is not None
    assert found.explanation.id == "aborted-at-exit"
    assert "the training itself was over" in found.explanation.causes[0]


def test_a_chain_is_linked() -> None:
    (chain,) = parse((PASTES / "chain.txt").read_text(encoding="utf-8")).chains
    assert [(one.type, one.link) for one in chain.raised] == [
        ("RuntimeError", ""),
        ("ValueError", "cause"),
        ("FileNotFoundError", "context"),
    ]
    assert chain.raised[0].frames[-1].mark is not None


TRACEBACK = """\
Traceback (most recent call last):
  File "/home/me/project/train.py", line 42, in main
    loss = criterion(model(x), y)
  File "/opt/conda/lib/python3.11/site-packages/torch/nn/modules/linear.py", line 134, in forward
    return F.linear(input, self.weight, self.bias)
RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x3 and 4x2)
"""


def _prefixed(prefix: str) -> str:
    return "".join(f"{prefix}{line}\n" for line in TRACEBACK.splitlines())


@pytest.mark.parametrize(
    ("text", "rank"),
    [
        (TRACEBACK, None),
        (TRACEBACK.replace("\n", "\r\n"), None),
        (_prefixed("[rank3]: "), 3),
        (_prefixed("[default0]:"), 0),
        (_prefixed("[default5]:[rank5]: "), 5),
        (_prefixed("3: "), 3),
        (_prefixed("(RayTrainWorker pid=4711, ip=10.0.0.7) "), 4711),
        (_prefixed("trainer-1  | "), 1),
        (_prefixed("2024-05-01 12:00:01,123 ERROR "), None),
        (_prefixed("2024-05-01T12:00:01.123456Z stderr F "), None),
        (_prefixed("[2024-05-01 12:00:01] [ERROR] "), None),
        (_prefixed("> "), None),
        (_prefixed("\x1b[31m"), None),
        ("ERROR:root:the step failed\n" + TRACEBACK, None),
        ("  3%|▎  | 3/100 [00:01<00:40, 2.40it/s]" + TRACEBACK, None),
        ("Epoch 1: 10%\rEpoch 1: 20%\n" + TRACEBACK, None),
        # a forum took the indentation
        (TRACEBACK.replace("\n    ", "\n").replace("\n  ", "\n"), None),
        (TRACEBACK + "wandb: Waiting for W&B process to finish... (failed 1).\n", None),
    ],
)
def test_what_logs_put_around_a_traceback_is_taken_off(text: str, rank: int | None) -> None:
    found = answer(text)
    assert found.explanation is not None
    assert found.explanation.id == "matmul-shapes"
    assert found.raised is not None
    assert found.raised.rank == rank
    assert found.frame is not None
    assert (found.frame.file, found.frame.line, found.frame.function) == (
        "/home/me/project/train.py",
        42,
        "main",
    )
    assert found.frame.code == "loss = criterion(model(x), y)"


def test_of_several_ranks_the_earliest_failure_is_the_root() -> None:
    def log(rank: int, second: int, error: str) -> str:
        head, time = f"[rank{rank}]: ", f"2024-05-01 12:00:{second:02} "
        return (
            f'{head}{time}Traceback (most recent call last):\n{head}  File "train.py", line '
            f"{rank}, in step\n{head}    step()\n{head}{error}\n"
        )

    text = (
        log(
            0,
            1,
            "RuntimeError: [../gloo/transport/tcp/pair.cc:598] Connection closed by peer "
            "[10.0.0.1]:4711",
        )
        + log(1, 9, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
        + log(2, 5, "IndexError: index out of range in self")
    )
    found = answer(text)
    assert found.raised is not None
    assert found.raised.rank == 2
    assert found.explanation is not None
    assert found.explanation.id == "embedding-index"


@pytest.mark.parametrize(
    "error",
    [
        "CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "device-side assert triggered",
    ],
)
def test_the_kernels_assertion_tells_what_a_later_cuda_error_cannot(error: str) -> None:
    line = (
        "../aten/src/ATen/native/cuda/Indexing.cu:1292: indexSelectLargeIndex: block: [225,0,0], "
        "thread: [0,0,0] Assertion `srcIndex < srcSelectDimSize` failed.\n"
    )
    text = (
        'Traceback (most recent call last):\n  File "train.py", line 3, in main\n    '
        "loss.backward()\nRuntimeError: CUDA error: "
    ) + error
    after, alone = answer(line * 500 + text).explanation, answer(text).explanation
    assert after is not None
    assert alone is not None
    assert after.id == "device-assert-embedding"
    assert alone.id in ("cublas-alloc-failed", "device-assert")


def test_a_killed_rank_is_the_cause_of_the_launchers_summary() -> None:
    summary = (PASTES / "torchrun.txt").read_text(encoding="utf-8").partition("ChildFailedError")[2]
    text = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError" + summary.replace(
        "exitcode  : 1", "exitcode  : -9"
    )
    found = answer(text).explanation
    assert found is not None
    assert found.id == "process-killed"


def test_a_lookup_that_failed_and_was_handled_is_not_the_root() -> None:
    text = (
        'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    '
        "cache[key]\nKeyError: 7\n\n"
        "During handling of the above exception, another exception occurred:\n\n" + TRACEBACK
    )
    found = answer(text)
    assert found.explanation is not None
    assert found.explanation.id == "matmul-shapes"
    assert found.others == ("KeyError: 7",)


def test_a_pytest_failure_and_a_warning() -> None:
    found = answer(
        "    def test_x():\n>       loss.backward()\nE       RuntimeError: grad can be implicitly "
        "created only for scalar outputs\n"
    )
    assert found.explanation is not None
    assert found.explanation.id == "backward-of-non-scalar"
    warned = answer(
        "/home/me/venv/lib/python3.11/site-packages/torch/nn/modules/loss.py:616: UserWarning: "
        "Using a target size (torch.Size([4])) that is different to the input size "
        "(torch.Size([4, 1])). This will likely lead to incorrect results due to broadcasting. "
        "Please ensure they have the same size.\n  return F.mse_loss(input, target, "
        "reduction=self.reduction)\n"
    )
    assert warned.explanation is not None
    assert warned.explanation.rule == "ND111"
    assert render(warned, rules=frozenset({"ND111"})).startswith("warning[ND111]: ")


def test_the_source_is_read_where_the_paste_has_none(tmp_path: Path) -> None:
    (tmp_path / "step.py").write_text("first\nloss.backward()\n")
    (tmp_path / "secret.txt").write_text("first\nsecret\n")
    (tmp_path / "large.py").write_text("x\n" * 2**20)
    for name, code in (
        ("step.py", "loss.backward()"),
        ("secret.txt", None),
        ("large.py", None),
        ("none.py", None),
    ):
        text = (
            f'Traceback (most recent call last):\n  File "{name}", line 2, in main\nRuntimeError: '
            "grad can be implicitly created only for scalar outputs"
        )
        frame = answer(text).frame
        assert frame is not None
        assert frame.code == code


def test_what_is_printed_moves_no_cursor() -> None:
    text = (
        TRACEBACK.replace("main", "main\x1b]0;title\x07\x9b2J")
        .replace("criterion", "crit\x08erion")
        .replace("RuntimeError", "\x1b[2JRuntimeError")
    )
    shown = render(answer(text))
    assert not [ch for ch in shown if not ch.isprintable() and ch != "\n"]


def test_the_whole_answer(golden: Callable[[str, str], None]) -> None:
    found = answer((PASTES / "fit.txt").read_text(encoding="utf-8"))
    golden("explained_label", render(found, rules=frozenset({"ND103"})))


def test_an_unknown_message_is_said_to_be_unknown() -> None:
    shown = render(
        answer(TRACEBACK.rpartition("RuntimeError")[0] + "RuntimeError: the moon is full")
    )
    assert "this message is not in the knowledge base" in shown
    assert "train.py:42 in main" in shown
    assert "next: nanodoc run" in shown
