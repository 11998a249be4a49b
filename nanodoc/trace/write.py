"""Writes a traced step's ops to a file, one JSON object a line."""

from __future__ import annotations

import json
from pathlib import Path

from nanodoc.artifacts import make_folder
from nanodoc.trace.graph import StepTrace


def write_trace(trace: StepTrace, folder: Path, step: int) -> Path:
    """`trace-step<N>.jsonl` in `folder`: op, phase, module, place and whether its output was
    non-finite."""
    make_folder(folder)
    path = folder / f"trace-step{step}.jsonl"
    number = 2
    while path.exists():  # an earlier run's trace is kept
        path = folder / f"trace-step{step}-{number}.jsonl"
        number += 1
    with path.open("w", encoding="utf-8") as file:
        for index, record in enumerate(trace.records):
            facts = trace.facts(index)
            where = facts.location
            line = {
                "index": index,
                "op": facts.op,
                "phase": facts.phase,
                "node": facts.node,
                "module": facts.module,
                "file": where.file if where else None,
                "line": where.line if where else None,
                "inputs": [trace.source_name(ref) for ref in record.inputs],
                "nonfinite": trace.bad[index],
            }
            file.write(json.dumps(line) + "\n")
    return path
