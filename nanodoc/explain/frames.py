"""The frames of a traceback as Python, IPython and rich write them, and which of them are the
user's own."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

_PYTHON = re.compile(
    r'\s*File "(?P<file>[^"\n]{1,500})", line (?P<line>\d{1,9})(?:, in (?P<function>.{1,300}))?'
)
_IPYTHON = re.compile(
    r"File (?P<file>[^\s\"][^\"\n]{0,500}?):(?P<line>\d{1,9})(?:, in "
    r"(?P<function>[^\s(]{1,200})(?:\(.*)?)?"
)
_CELL = re.compile(
    r"(?P<file>(?:Cell )?In ?\[\d{1,6}\]), line (?P<line>\d{1,9})(?:, in "
    r"(?P<function>[^\s(]{1,200})(?:\(.*)?)?"
)
_INPUT = re.compile(
    r"(?P<file>Input In \[\d{1,6}\]|<ipython-input-[\w-]{1,80}>|(?:~|/|[A-Za-z]:\\)\S{1,500}) in "
    r"(?P<function>[^\s(]{1,200}).*"
)
_RICH = re.compile(
    r"(?P<file>\S.{0,500}?\.pyx?|<ipython-input-[\w-]{1,80}>):(?P<line>\d{1,9}) in(?: "
    r"(?P<function>\S{1,200}))?"
)
_FORMS = (_PYTHON, _CELL, _IPYTHON, _RICH, _INPUT)
ARROW = re.compile(r"(?:-+>|❱) ?(?P<line>\d{1,9}) ?(?P<code>.*)")
CARETS = re.compile(r"\s*[~^]*\^[~^]*\s*|\s*~+\s*")

# Installed packages and the interpreter's own files, on every system.
_FOREIGN = re.compile(
    r"(?:^|/)(?:site-packages|dist-packages)/|/(?:(?:ana|mini)conda|(?:mini|mamba)forge"
    r"|micromamba)\d?/lib/|/PythonSoftwareFoundation\.Python[^/]+/lib/|(?:^|/)(?:lib"
    r"|lib64)/python\d|/python[\d.]*/lib/|/envs/[^/]+/lib/|^<|(?:^|/)importlib/|^(?:torch"
    r"|torchvision|transformers|lightning|pytorch_lightning|lightning_fabric|accelerate|deepspeed"
    r"|peft|trl)/|/torch/(?:nn|utils|optim|autograd|distributed|multiprocessing|amp|cuda|jit"
    r"|_dynamo|_inductor|_functorch)/|/(?:lightning/(?:pytorch|fabric)|pytorch_lightning"
    r"|transformers/models)/|/transformers/(?:trainer|modeling_|tokenization_)|/(?:pytorch/torch"
    r"|src/(?:transformers|accelerate|lightning|peft|trl|datasets))/|/bin/(?:torchrun|accelerate"
    r"|deepspeed|python[\d.]*|pytest|ray)$",
    re.IGNORECASE,
)
_NOTEBOOK = re.compile(r"<ipython-input|(?:Cell |Input )?In ?\[|/ipykernel_\d+/", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Frame:
    """One place of a traceback."""

    file: str
    line: int | None
    function: str | None
    code: str | None = None
    mark: tuple[int, int] | None = None
    """Start and end, in `code`, of what Python underlined."""

    @property
    def is_users(self) -> bool:
        """False for installed packages, the standard library and generated code."""
        path = self.file.replace("\\", "/")
        return bool(_NOTEBOOK.search(path)) or not _FOREIGN.search(path)


def frame_of(line: str) -> Frame | None:
    """The frame that this line begins."""
    text = line.rstrip()
    for form in _FORMS:
        match = form.fullmatch(text if form is _PYTHON else text.strip())
        if match:
            number = match.groupdict().get("line")
            return Frame(
                file=match["file"], line=int(number) if number else None, function=match["function"]
            )
    return None


def with_code(frame: Frame, code: str, carets: str | None) -> Frame:
    """`frame` with its line of source, and what Python underlined in it."""
    text = code.strip()
    if not text:
        return frame
    mark = None
    if carets is not None and CARETS.fullmatch(carets):
        indent = len(code) - len(code.lstrip())
        start, end = len(carets) - len(carets.lstrip()) - indent, len(carets.rstrip()) - indent
        mark = (max(0, start), min(end, len(text))) if max(0, start) < min(end, len(text)) else None
    return replace(frame, code=text, mark=mark)


def with_arrow(frame: Frame, line: str) -> Frame | None:
    """`frame` with the line that IPython or rich points at with an arrow; None where this line has
    none."""
    match = ARROW.fullmatch(line.strip())
    return (
        replace(
            frame, line=frame.line or int(match["line"]), code=match["code"].strip("│ ") or None
        )
        if match
        else None
    )
