"""The public JSON form of a report (schema version 2): every field is there, null or empty where it
doesn't apply."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from nanodoc.diagnosis.finding import Finding
from nanodoc.facts.amp import AmpFacts
from nanodoc.facts.frames import FrameTable
from nanodoc.facts.loop import RunStatistics
from nanodoc.facts.ops import OpFacts, TensorFacts
from nanodoc.facts.ranks import RankOutcome
from nanodoc.report.report import SCHEMA, Accepted, GradGraph, Report


def public_form(report: Report) -> dict[str, Any]:
    """The report as plain data."""
    losses = report.vitals.losses
    finite = [loss for loss in losses if loss - loss == 0]
    norms = [norm for norm in report.vitals.grad_norms if norm - norm == 0]
    return {
        "schema": SCHEMA,
        "nanodoc": report.nanodoc,
        "verdict": report.verdict,
        "interrupted": report.interrupted,
        "run": asdict(report.run),
        "findings": [_finding(finding) for finding in report.findings],
        "accepted": [_accepted(one) for one in report.accepted],
        "unused_ignores": [asdict(ignore) for ignore in report.unused_ignores],
        "checked": list(report.checked),
        "not_checked": [{"what": what, "why": why} for what, why in report.not_checked],
        "vitals": {
            "steps": report.vitals.steps,
            "loss_first": losses[0] if losses else None,
            "loss_last": losses[-1] if losses else None,
            "loss_lowest": min(finite) if finite else None,
            "grad_norm_max": max(norms) if norms else None,
            "grad_norm_before_clipping_max": max(
                (norm for norm in report.vitals.clip_norms if norm - norm == 0), default=None
            ),
            "optimizer_steps": report.vitals.optimizer_steps,
            "skipped_steps": report.vitals.skipped_steps,
            "calibration_skips": report.vitals.calibration_skips,
            "scale_first": report.vitals.scales[0] if report.vitals.scales else None,
            "scale_last": report.vitals.scales[-1] if report.vitals.scales else None,
            "learning_rate_first": report.vitals.rates[0] if report.vitals.rates else None,
            "learning_rate_last": report.vitals.rates[-1] if report.vitals.rates else None,
            "update_ratio_last": report.vitals.update_ratios[-1]
            if report.vitals.update_ratios
            else None,
            "load_share": _rounded(report.vitals.load_share, 4),
            "samples_per_second": _rounded(report.vitals.samples_per_second, 2),
            "peak_memory": report.vitals.peak_memory,
            "overhead": _rounded(report.vitals.overhead, 4),
        },
        "artifacts": {"snapshot": None, "history": None, **report.artifacts},
        "graph": _graph(report.graph),
        "amp": _amp(report.amp),
        "frames": [_frames(table) for table in report.frames],
        "magnitudes": [asdict(one) for one in report.magnitudes],
        "warnings": [asdict(warning) for warning in report.warnings],
        "preflight": [asdict(check) for check in report.preflight],
        "learning": report.learning and asdict(report.learning),
        "overfit": report.overfit and asdict(report.overfit),
        "stats": _stats(report.stats),
        "ranks": [_rank(rank) for rank in report.ranks],
        "tried": [dict(row) for row in report.tried],
        "ops": [_op(op) for op in report.ops],
        "snapshot": asdict(report.snapshot) if report.snapshot is not None else None,
    }


def _rounded(value: float | None, digits: int) -> float | None:
    return round(value, digits) if value is not None else None


def _accepted(one: Accepted) -> dict[str, Any]:
    return {
        "by": one.by,
        "place": one.place,
        "reason": one.reason,
        "finding": _finding(one.finding),
    }


def _graph(graph: GradGraph | None) -> dict[str, Any] | None:
    if graph is None:
        return None
    return {
        "steps": graph.steps,
        "parameters": [
            {
                "name": p.name,
                "shape": list(p.shape),
                "state": p.state,
                "states": list(p.states),
                "norm": p.norm,
                "optimizers": list(p.optimizers),
            }
            for p in graph.parameters
        ],
        "modules": dict(graph.modules),
        "edges": [{"source": s, "target": t, "carries": c, "cut": x} for s, t, c, x in graph.edges],
        "cuts": [
            {"kind": kind, "place": place, "orphans": list(orphans)}
            for kind, place, orphans in graph.cuts
        ],
        "outside": [
            {"name": name, "shape": list(shape), "state": state}
            for name, shape, state in graph.outside
        ],
    }


def _amp(facts: AmpFacts | None) -> dict[str, Any] | None:
    if facts is None:
        return None
    return {
        "dtype": facts.dtype,
        "scaler": facts.has_scaler,
        "scaler_enabled": facts.scaler_enabled,
        "skipped": [step.step for step in facts.skipped],
        "calibration_skips": facts.calibration,
        "run_again": [asdict(skip) for skip in facts.retried],
        "flushed": [
            {"kind": f.kind, "name": f.name, "op": f.op, "share": f.share, "lost_norm": f.lost_norm}
            for f in facts.flushed
            if f.flushed
        ],
        "headroom": [
            {"module": h.module, "op": h.op, "dtype": h.dtype, "absmax": h.absmax}
            for h in facts.headroom
        ],
    }


def _stats(stats: RunStatistics | None) -> dict[str, Any] | None:
    if stats is None:
        return None
    return {
        "sampled": list(stats.sampled),
        "update_ratios": [
            {"step": step, "groups": list(ratios)} for step, ratios in stats.group_ratios
        ],
        "parameters": [asdict(p) for p in stats.parameters],
        "layers": [asdict(layer) for layer in stats.layers],
    }


def _rank(outcome: RankOutcome) -> dict[str, Any]:
    where = outcome.location.place if outcome.location else None
    return {
        "rank": outcome.rank,
        "host": outcome.host,
        "ended": outcome.ended,
        "steps": outcome.steps,
        "step": outcome.step,
        "phase": outcome.phase or None,
        "why": outcome.why or None,
        "location": where,
        "loss": outcome.loss,
        "stack": [f"{line.place} in {line.function}" for line in outcome.stack],
        "collectives": [
            {name: value for name, value in asdict(one).items() if name != "through"}
            for one in outcome.collectives
        ],
    }


def _op(op: OpFacts) -> dict[str, Any]:
    inputs, outputs = [_tensor(fact) for fact in op.inputs], [_tensor(fact) for fact in op.outputs]
    where = op.location.place if op.location else None
    return {
        "index": op.index,
        "op": op.op,
        "phase": op.phase,
        "module": op.module,
        "location": where,
        "inputs": inputs,
        "outputs": outputs,
    }


def _tensor(fact: TensorFacts) -> dict[str, Any]:
    return {
        "label": fact.label,
        "dtype": fact.dtype,
        "shape": list(fact.shape),
        "minimum": fact.minimum,
        "maximum": fact.maximum,
        "nonfinite": fact.nonfinite,
    }


def _frames(table: FrameTable) -> dict[str, Any]:
    return {
        "step": table.step,
        "why": table.why,
        "left_out": table.left_out,
        "path": [{"module": module, "absmax": value} for module, value in table.path()],
        "frames": [
            {
                "index": frame.index,
                "module": frame.module,
                "module_type": frame.module_type,
                "tensors": [{**asdict(t), "headroom": t.headroom} for t in frame.tensors],
            }
            for frame in table.frames
        ],
        "ops": [asdict(op) for op in table.ops],
    }


def _finding(finding: Finding) -> dict[str, Any]:
    culprit = asdict(finding.culprit)
    return {
        "code": finding.code,
        "name": finding.name,
        "severity": finding.severity,
        "confidence": round(finding.confidence, 3),
        "title": finding.title,
        "explanation": finding.explanation,
        "culprit": culprit,
        "phase": finding.phase,
        "step": finding.step,
        "rank": finding.rank,
        "evidence": [{"label": label, "value": value} for label, value in finding.evidence],
        "chain": [asdict(link) for link in finding.chain],
        "effects": [{"what": what, "step": step} for what, step in finding.effects],
        "experiments": [dict(experiment) for experiment in finding.experiments],
        "cause": finding.cause,
        "cause_why": finding.cause_why,
        "fixes": [
            {
                key: value
                for key, value in asdict(fix).items()
                if key not in ("remedy", "loss_of", "replaces")
            }
            for fix in finding.fixes
        ],
        "fingerprint": finding.fingerprint,
    }
