"""`nanodoc env`: what it says, what it never says, and that nothing broken on the machine takes it
down."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nanodoc.cuda import has_code
from nanodoc.environment import checks, packages, system
from nanodoc.environment.gather import gather, nvidia_driver
from nanodoc.environment.model import FAILED, NOTE, OK, Check, Environment, Gpu
from nanodoc.environment.variables import redacted, relevant
from nanodoc.report.environment import render
from tests.helpers import fresh_nanodoc, nanodoc, report_of


def fresh_with_variables(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Where what the process can import is what counts."""
    command = [sys.executable, "-m", "nanodoc", "env", *arguments]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={**os.environ, **variables},
        timeout=120,
        check=False,
    )


def test_the_block_is_fenced_and_complete() -> None:
    done = fresh_nanodoc("env")
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()
    assert lines[0] == "```text"
    assert lines.count("```") == 1
    assert lines[-1].startswith("verdict: healthy")
    rows = {line[:14].strip() for line in lines}
    assert {
        "nanodoc",
        "python",
        "os",
        "cpu",
        "memory",
        "torch",
        "built for",
        "distributed",
        "driver",
        "packages",
        "variables",
    } <= rows
    assert f"torch          {torch.__version__}" in done.stdout
    assert done.stderr == ""


def test_json_has_the_same(tmp_path: Path) -> None:
    done = nanodoc(
        "env", "--output-format", "json", "--output", "env.json", cwd=tmp_path, OMP_NUM_THREADS="1"
    )
    assert done.stdout == ""
    said = json.loads((tmp_path / "env.json").read_text())
    assert said["schema"] == 1
    assert said["facts"]["torch"] == torch.__version__
    assert said["variables"]["OMP_NUM_THREADS"] == "1"
    assert said["packages"]["numpy"]
    assert {one["name"] for one in said["checks"]} >= {
        "torch",
        "arithmetic",
        "backward",
        "GPU",
        "threads",
        "shared memory",
        "distributed",
    }


SECRETS = {
    "HF_TOKEN": "s3cret-one",
    "WANDB_API_KEY": "s3cret-two",
    "AWS_SECRET_ACCESS_KEY": "s3cret-three",
    "TORCH_PASSWORD": "s3cret-four",
    "CUDA_LICENSE_KEY": "s3cret-five",
    "NCCL_AUTH": "s3cret-six",
    "PYTORCH_TOKENS": "s3cret-seven",
    "MY_OWN": "s3cret-eight",
    "TORCH_MIRROR": "https://me:s3cret-nine@mirror.example/simple?sig=s3cret-ten#s3cret-eleven",
    "TORCH_PROXY": "hf_s3cretTWELVEabcdef",
}


@pytest.mark.parametrize("output_format", ["full", "json"])
def test_secrets_never_show_up(output_format: str, tmp_path: Path) -> None:
    home = tmp_path / "alice"
    done = nanodoc(
        "env",
        "--output-format",
        output_format,
        **SECRETS,
        HOME=str(home),
        TORCH_HOME=f"{home}/models",
        TOKENIZERS_PARALLELISM="false",
    )
    said = done.stdout + done.stderr
    assert "s3cret" not in said
    assert "mirror.example/simple" in said
    assert "alice" not in said
    assert "~/models" in said
    assert "TOKENIZERS_PARALLELISM" in said


@given(
    st.dictionaries(
        st.sampled_from([*SECRETS, "HOME_TOKEN", "NCCL_DEBUG", "x", "cuda_token"]),
        st.text(max_size=20),
    )
)
def test_only_names_on_the_list_are_shown(variables: dict[str, str]) -> None:
    assert set(relevant(variables)) <= {"NCCL_DEBUG", "TORCH_MIRROR", "TORCH_PROXY"}


@given(st.text())
def test_redaction_takes_any_text(text: str) -> None:
    assert len(redacted(text)) <= 300


def test_a_torch_that_cannot_be_imported_is_a_failed_check(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(
        "raise ImportError('libcudart.so.12: cannot open shared object file')"
    )
    path = os.pathsep.join(
        filter(
            None,
            [str(tmp_path), str(Path(checks.__file__).parents[2]), os.environ.get("PYTHONPATH")],
        )
    )
    done = fresh_with_variables("--output-format", "json", PYTHONPATH=path)
    said = report_of(done)
    assert done.returncode == 1
    assert said["verdict"] == "failed"
    assert (
        said["facts"]["torch"]
        == "unknown (ImportError: libcudart.so.12: cannot open shared object file)"
    )
    assert said["facts"]["python"].startswith(".".join(map(str, sys.version_info[:3])))
    (failed,) = [one for one in said["checks"] if one["state"] == "FAILED"]
    assert failed["name"] == "torch"


@pytest.mark.slow
def test_what_breaks_is_unknown_and_the_rest_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Any:
        raise PermissionError("not in this container")

    for name in ("processor", "memory", "usable_cores", "shared_memory", "operating_system"):
        monkeypatch.setattr(system, name, broken)
    environment = gather()
    assert environment.facts["cpu"] == "unknown (PermissionError: not in this container)"
    assert environment.facts["torch"] == torch.__version__
    by_name = {check.name: check for check in environment.checks}
    assert by_name["shared memory"].text == "raised: PermissionError: not in this container"
    assert by_name["backward"].state == OK
    assert "unknown" in render(environment)


def test_a_driver_and_a_build_for_the_cpu_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if torch.version.cuda is not None or torch.version.hip is not None:
        pytest.skip("this torch is built for a GPU")
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 560.35.03\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert nvidia_driver() == "560.35.03"
    done = nanodoc("env", "--output-format", "json")
    (failed,) = [one for one in report_of(done)["checks"] if one["state"] == "FAILED"]
    assert done.returncode == 1
    assert failed["name"] == "GPU"
    assert "whl/cu" in failed["help"]


@pytest.mark.slow
def test_an_nvidia_smi_that_hangs_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nexec sleep 60\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr("nanodoc.environment.gather._SMI_SECONDS", 0.2)
    assert nvidia_driver() == "unknown (nvidia-smi: TimeoutExpired)"


@pytest.mark.parametrize(
    ("capability", "architectures", "runs"),
    [
        ((8, 6), ["sm_80"], True),
        ((8, 0), ["sm_86"], False),
        ((9, 0), ["sm_80", "sm_86"], False),
        ((9, 0), ["sm_80", "compute_80"], True),
        ((9, 0), ["sm_90a"], True),
        ((12, 0), ["sm_90", "sm_120"], True),
        ((6, 1), ["sm_75", "compute_90"], False),
        ((8, 6), [], False),
    ],
)
def test_code_for_a_gpu(capability: tuple[int, int], architectures: list[str], runs: bool) -> None:
    assert has_code(capability, architectures) is runs


def test_a_library_built_for_another_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "version_of", {"torchvision": "0.20.0"}.get)
    monkeypatch.setattr(packages.metadata, "requires", lambda name: ["numpy", "torch==2.5.0"])
    assert packages.pairing("2.5.0+cu124").state == OK
    wrong = packages.pairing("2.13.0+cpu")
    assert wrong.state == NOTE
    assert wrong.text == "torchvision 0.20.0 is built for torch 2.5.0, but torch is 2.13.0+cpu"


@pytest.mark.slow
def test_small_shared_memory_and_too_many_threads_are_noted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(system, "shared_memory", lambda: (64 * 2**20, 60 * 2**20))
    monkeypatch.setattr(system, "usable_cores", lambda: 0.5)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    by_name = {check.name: check for check in gather().checks}
    assert by_name["shared memory"].state == by_name["threads"].state == NOTE
    assert "--shm-size" in (by_name["shared memory"].help or "")
    assert "OMP_NUM_THREADS=1" in (by_name["threads"].help or "")


@pytest.mark.slow
def test_wrong_arithmetic_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    right = torch.Tensor.__matmul__
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda self, other: right(self, other) + 1e-3)
    by_name = {check.name: check for check in gather().checks}
    assert by_name["arithmetic"].state == FAILED
    assert by_name["arithmetic"].text == "wrong on the CPU: a matrix product"


def test_nothing_ends_the_fence() -> None:
    gpu = Gpu(
        index=0, name="```\n# title\x1b[31m", memory=2**30, capability="sm_90", supported=False
    )
    check = Check(name="x", state=FAILED, text="``` [link](http://x)", help="```")
    text = render(
        Environment(
            facts={"os": "```"},
            gpus=(gpu,),
            packages={},
            variables={"CUDA_X": "a ``` b"},
            checks=(check,),
        )
    )
    assert text.count("```") == 2
    assert "\x1b" not in text
    assert "not supported by this torch build" in text
