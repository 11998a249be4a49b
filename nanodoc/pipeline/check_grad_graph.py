"""`nanodoc check-grad-graph`: entrypoint → recipe → steps without an optimizer → report."""

from __future__ import annotations

from dataclasses import replace

from nanodoc.accelerator import device_before_import, device_of
from nanodoc.config import Config
from nanodoc.errors import UserCodeError
from nanodoc.examination.traceback import describe_failure
from nanodoc.facts.evidence import Evidence
from nanodoc.loop.grad_graph_run import run_graph_check
from nanodoc.loop.settings import seed_everything, with_amp
from nanodoc.pipeline.common import build_watched, check_module, report_of, run_info
from nanodoc.report.grad_picture import picture_of
from nanodoc.report.report import Report, VitalSigns


def check_grad_graph(entrypoint: str, config: Config, module: str | None = None) -> Report:
    """Runs steps without ever stepping an optimizer and says which parameters get a gradient.
    Raises `UsageError`."""
    device = device_before_import(config.device)
    if config.seed is not None:
        seed_everything(config.seed)
    steps = config.steps or 1
    try:
        recipe, build = build_watched(entrypoint, config)
    except UserCodeError as error:
        info = run_info(entrypoint, "check-grad-graph", config, device, None, steps, 0, "not_run")
        return report_of(
            info, Evidence(failure=describe_failure(error)), config, VitalSigns(), {}, [], False
        )
    device = device_of(recipe.model, config.device)
    check_module(recipe, module)
    modules = {path: type(m).__name__ for path, m in recipe.model.named_modules()}
    recipe, amp_dtype = with_amp(recipe, config.amp, device)
    outcome = run_graph_check(recipe, build, device, amp_dtype, steps)
    info = run_info(
        entrypoint,
        "check-grad-graph",
        config,
        device,
        amp_dtype,
        steps,
        len(outcome.steps),
        "not_run",
    )
    vitals = VitalSigns(steps=len(outcome.steps))
    report = report_of(
        info, outcome.evidence(recipe, build), config, vitals, {}, outcome.notes, False
    )
    picture = picture_of(
        outcome.steps,
        outcome.merged,
        outcome.ownership,
        modules,
        has_optimizer=bool(recipe.optimizers),
        below=module,
    )
    return replace(report, graph=picture, whole=not report.broke and bool(outcome.steps))
