"""Pastes that came damaged: broken lines, parts of a message, typographic characters, prefixes; and
what they still tell."""

from __future__ import annotations

import textwrap

import pytest

from nanodoc.explain.answer import answer
from nanodoc.report.explained import document, render
from tests.explain.test_pastes import TRACEBACK

IN_PLACE = (
    "RuntimeError: one of the variables needed for gradient computation has been modified by an "
    "inplace operation: [torch.cuda.FloatTensor [64, 256]], which is output 0 of ReluBackward0, "
    "is at version 1; expected version 0 instead."
)


def _id(text: str) -> str | None:
    explanation = answer(text).explanation
    return explanation.id if explanation else None


def _broken(text: str, width: int) -> str:
    return "\n".join(
        line[at : at + width]
        for line in text.splitlines()
        for at in range(0, max(1, len(line)), width)
    )


@pytest.mark.parametrize("width", [40, 60, 80])
def test_lines_that_a_terminal_broke_in_the_middle_of_words(width: int) -> None:
    found = answer(_broken(TRACEBACK, width))
    assert found.explanation is not None
    assert found.explanation.id == "matmul-shapes"
    assert found.raised is not None
    assert found.raised.type == "RuntimeError"
    assert found.frame is not None
    assert (found.frame.file, found.frame.line) == ("/home/me/project/train.py", 42)


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_message_that_was_broken_between_words(width: int) -> None:
    assert _id(textwrap.fill(IN_PLACE, width)) == "in-place-overwrite"
    assert (
        _id(TRACEBACK.replace("mat1 and mat2 shapes cannot", "mat1 and mat2 shapes\ncannot"))
        == "matmul-shapes"
    )


def test_an_unknown_error_does_not_become_known_by_joining_lines() -> None:
    text = (
        TRACEBACK.rpartition("RuntimeError")[0]
        + "MyError: the moon is full\nand the loss\nis round\n"
    )
    assert _id(text) is None
    assert _id(_broken(text, 60)) is None


@pytest.mark.parametrize(
    ("part", "entry"),
    [
        ("mat1 and mat2 shapes cannot be multiplied", "matmul-shapes-unsaid"),
        ("shapes cannot be multiplied (4x7200 and 512x10)", "matmul-shapes"),
        ("modified by an inplace operation", "in-place-overwrite"),
        ("does not require grad and does not have a grad_fn", "loss-without-graph"),
        ("out of memory", "memory-full"),
        ("CUDA out of memory", "cuda-out-of-memory"),
    ],
)
def test_a_part_of_a_message(part: str, entry: str) -> None:
    assert _id(part) == entry


@pytest.mark.parametrize(
    ("text", "entry"),
    [
        (
            "RuntimeError: \u201caddmm_impl_cpu_\u201d not implemented for \u2018Half\u2019",
            "not-implemented-for-dtype",
        ),
        (
            "RuntimeError: mat1 and mat2 shapes cannot be multiplied (4\u00d77200 and 512\u00d710)",
            "matmul-shapes",
        ),
        (
            "RuntimeError:\u00a0mat1\u00a0and mat2 shapes cannot be multiplied (4x7200 and 512x10)",
            "matmul-shapes",
        ),
        ("RuntimeError: Can&#39;t call numpy() on Tensor that requires grad.", "numpy-of-graph"),
        (
            "TypeError: default_collate: batch must contain tensors; found &lt;class "
            "&quot;x&quot;&gt;",
            None,
        ),
    ],
)
def test_characters_that_pages_and_editors_put_in(text: str, entry: str | None) -> None:
    assert _id(text) == entry
    assert "&" not in answer(text).text


DYNAMO = """\
Traceback (most recent call last):
  File "/home/me/project/train.py", line 7, in <module>
    f(torch.randn(2))
  File "/home/me/venv/lib/python3.11/site-packages/torch/_dynamo/eval_frame.py", line 1177, in compile_wrapper
    raise e.with_traceback(
torch._dynamo.exc.Unsupported: Data-dependent branching
  Explanation: Detected data-dependent branching (e.g. `if my_tensor.sum() > 0:`).

  Hint: Use `torch.cond` to express dynamic control flow.

from user code:
   File "/home/me/project/net.py", line 4, in f
    if x.sum()>0:
       ^^^^^^^^^^

Set TORCHDYNAMO_VERBOSE=1 for the internal stack trace
"""


@pytest.mark.parametrize("prefix", ["", "2025-06-01 12:00:00,123 ERROR ", "[rank0]: "])
def test_dynamo_names_the_line_it_was_tracing(prefix: str) -> None:
    found = answer("".join(f"{prefix}{line}\n" for line in DYNAMO.splitlines()))
    assert found.explanation is not None
    assert found.raised is not None
    assert found.raised.type == "torch._dynamo.exc.Unsupported"
    assert found.frame is not None
    assert (found.frame.file, found.frame.line, found.frame.code) == (
        "/home/me/project/net.py",
        4,
        "if x.sum()>0:",
    )


def test_the_standard_library_of_a_conda_on_windows_is_not_the_users() -> None:
    found = answer(
        'Traceback (most recent call last):\r\n  File "D:\\proj\\train.py", line 9, in main\r\n   '
        " for x in loader:\r\n  File "
        '"C:\\Users\\me\\anaconda3\\lib\\multiprocessing\\reduction.py", line 60, in dump\r\n    '
        "ForkingPickler(file, protocol).dump(obj)\r\n"
        "AttributeError: Can't pickle local object 'main.<locals>.<lambda>'\r\n"
    )
    assert found.frame is not None
    assert (found.frame.file, found.frame.line) == ("D:\\proj\\train.py", 9)
    assert found.explanation is not None
    assert found.explanation.id == "pickle-local"


WARNED = (
    "{file}:5: UserWarning: Using a target size (torch.Size([4])) that is different to the input "
    "size (torch.Size([4, 1])). This will likely lead to incorrect results due to broadcasting."
)


@pytest.mark.parametrize("file", ["C:\\Users\\Anna\\proj\\t.py", "/home/me/t.py", "t.py"])
@pytest.mark.parametrize("prefix", ["", "> "])
def test_where_a_warning_was_given(file: str, prefix: str) -> None:
    found = answer(prefix + WARNED.format(file=file))
    assert found.frame is not None
    assert (found.frame.file, found.frame.line) == (file, 5)
    assert found.explanation is not None
    assert found.explanation.id == "broadcast-in-loss"


def test_what_a_native_exception_says_is_the_error() -> None:
    text = (
        "terminate called after throwing an instance of 'c10::Error'\n  what():  {}\nAborted (core "
        "dumped)\n"
    )
    found = answer(text.format("CUDA error: an illegal memory access was encountered"))
    assert found.explanation is not None
    assert found.explanation.id == "illegal-memory-access"
    assert found.raised is not None
    assert found.raised.type == "c10::Error"
    assert _id(text.format("nobody knows this")) == "native-exception"
    assert _id("Aborted (core dumped)") == "aborted"


def test_lines_with_numbers() -> None:
    found = answer(
        "".join(f"[{number}] {line}\n" for number, line in enumerate(TRACEBACK.splitlines(), 1824))
    )
    assert found.raised is not None
    assert found.raised.type == "RuntimeError"
    assert found.raised.rank is None
    assert found.frame is not None
    assert (found.frame.file, found.frame.line) == ("/home/me/project/train.py", 42)


def _raised(error: str, *frames: str) -> str:
    return "".join(
        [
            "Traceback (most recent call last):\n",
            *(f'  File "{frame}", line 3, in f\n    y = g(x)\n' for frame in frames),
            error,
        ]
    )


SITE = "/opt/conda/lib/python3.11/site-packages"


@pytest.mark.parametrize(
    ("text", "entry"),
    [
        (
            _raised("ModuleNotFoundError: No module named 'models'", "train.py"),
            "own-module-not-found",
        ),
        (
            _raised(
                "ModuleNotFoundError: No module named 'models'",
                "train.py",
                f"{SITE}/torch/serialization.py",
            ),
            "checkpoint-module-moved",
        ),
        (
            _raised("KeyError: 'label'", "train.py", f"{SITE}/pandas/core/frame.py"),
            "dataframe-column",
        ),
        (_raised("KeyError: 41", "data.py", f"{SITE}/pandas/core/series.py"), "dataframe-label"),
        (_raised("KeyError: 'label'", "train.py"), "batch-key-missing"),
        (
            _raised(
                "EOFError: Ran out of input", "/opt/conda/lib/python3.11/multiprocessing/spawn.py"
            ),
            "spawned-child-echo",
        ),
        (_raised("EOFError: Ran out of input", "load.py"), "checkpoint-damaged"),
    ],
)
def test_the_frames_tell_which_of_two_errors_with_one_message_it_is(text: str, entry: str) -> None:
    assert _id(text) == entry


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("ImportError: the moon is full", "nanodoc env"),
        ("OSError: [WinError 4711] moon.dll is full", "nanodoc env"),
        ("ValueError: the moon is full", "nanodoc run train.py"),
        ("t.py:3: UserWarning: the moon is full", None),
        (
            "TypeError: Cannot read properties of undefined (reading 'map')\n    at App.js:12:4",
            None,
        ),
        ("the moon is full", None),
    ],
)
def test_what_to_do_next_about_an_unknown_text(text: str, command: str | None) -> None:
    found = answer(text)
    assert document(found)["known"] is False
    assert document(found)["next"] == command
    assert ("next:" in render(found)) == (command is not None)


def test_long_values_and_lines_end_at_a_word() -> None:
    long = "torch._inductor.exc.InductorError: LoweringException: " + "a reason that goes on " * 40
    found = answer(long).explanation
    assert found is not None
    assert found.means.endswith(" …")
    log = (
        "[E ProcessGroupNCCL.cpp:475] [Rank 1] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=1234, OpType=ALLREDUCE, NumelIn=4) ran for 600123 milliseconds before "
        "timing out."
    )
    assert "before timing out" in render(answer(log))


def test_articles_fit_the_words_that_are_filled_in() -> None:
    found = answer("TypeError: Caught IndexError in DataLoader worker process 0.").explanation
    assert found is not None
    assert found.title.startswith("an IndexError was raised")
    again = answer("ValueError: expected 4D input (got 2D input)").explanation
    assert again is not None
    assert "input input" not in again.means


@pytest.mark.parametrize(
    ("reserved", "allocated", "entry"),
    [
        ("13.71", "8.77", "cuda-memory-fragmented"),
        ("9.78", "9.50", "cuda-out-of-memory"),
        ("12.00", "9.50", "cuda-out-of-memory"),
    ],
)
def test_memory_is_in_pieces_where_more_is_reserved_than_was_asked_for(
    reserved: str, allocated: str, entry: str
) -> None:
    text = (
        f"Tried to allocate 2.87 GiB (GPU 0; 14.76 GiB total capacity; {allocated} GiB already "
        f"allocated; 19.75 MiB free; {reserved} GiB reserved in total by PyTorch)"
    )
    assert _id(f"RuntimeError: CUDA out of memory. {text}") == entry
