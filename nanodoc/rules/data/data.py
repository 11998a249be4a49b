"""ND1: what came in. Non-finite batches, losses with nothing to average."""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity, confidence
from nanodoc.diagnosis.finding import Culprit, Finding, Fix, Remedy
from nanodoc.diagnosis.rule import Rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.ops import LeafRoot
from nanodoc.rules.base import birth_claim, count, effects, link, replay_row
from nanodoc.rules.rewrite import sum_over_count, sum_over_kept

# Ops whose result over no element is 0/0.
_REDUCTIONS = (
    "mean",
    "std",
    "var",
    "std_mean",
    "var_mean",
    "median",
    "nanmean",
    "l1_loss",
    "mse_loss",
    "huber_loss",
    "smooth_l1_loss",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "kl_div",
)


def _non_finite_input(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    for leaf in evidence.leaves:
        if leaf.kind not in ("batch", "unknown"):
            continue
        facts = leaf.facts
        what = " and ".join(
            part
            for part in (
                count(facts.nan, "NaN") if facts.nan else "",
                f"{facts.inf} inf" if facts.inf else "",
            )
            if part
        )
        name = leaf.name if leaf.kind == "batch" else "a tensor made outside the step"
        who = ""
        if leaf.samples:
            shown = ", ".join(map(str, leaf.samples[:8])) + (", …" if len(leaf.samples) > 8 else "")
            who = f" Sample{'s' if len(leaf.samples) > 1 else ''} {shown} of the batch"
            if leaf.dataset_indices:
                who += (
                    f" (data set ind{'ices' if len(leaf.dataset_indices) > 1 else 'ex'} "
                    f"{', '.join(map(str, leaf.dataset_indices[:8]))})"
                )
            who += f" {'hold' if len(leaf.samples) > 1 else 'holds'} them."
        yield Claim(
            root=("leaf", leaf.name),
            specificity=Specificity.SPECIAL,
            position=leaf.consumer.index if leaf.consumer else 0,
            finding=Finding(
                code=rule.code,
                name=rule.name,
                severity=rule.severity,
                confidence=confidence(
                    0.5 if evidence.reproduced == "bitwise" else 0.2,
                    0.8 if facts.nonfinite else 0.0,
                    0.5 if leaf.samples else 0.0,
                ),
                title=f"{name} holds {what or 'non-finite values'}",
                explanation=f"{name} ({facts.dtype}, shape {list(facts.shape)}) comes in with {what} "
                f"among {facts.numel} elements, and they reach the loss.{who}",
                culprit=_data_culprit(leaf),
                phase="data" if leaf.kind == "batch" else "forward",
                step=evidence.trip.step if evidence.trip else evidence.failure_step,
                evidence=(
                    ("NaN", facts.nan),
                    ("inf", facts.inf),
                    ("elements", facts.numel),
                    ("finite minimum", facts.minimum),
                    ("finite maximum", facts.maximum),
                ),
                chain=tuple(link(op) for op in leaf.chain),
                effects=effects(evidence),
                experiments=replay_row(evidence),
                fixes=()
                if leaf.kind != "batch"
                else (
                    Fix(
                        title="drop or repair these samples in the data set, before they are batched",
                        confidence="likely",
                        remedy=Remedy(kind="without-samples"),
                    ),
                ),
            ),
        )


def _data_culprit(leaf: LeafRoot) -> Culprit:
    consumer = leaf.consumer
    return Culprit(
        kind="data",
        op=consumer.op if consumer else None,
        module=consumer.module if consumer else None,
        module_type=consumer.module_type if consumer else None,
        batch_path=leaf.name if leaf.kind == "batch" else None,
        samples=leaf.samples,
        dataset_indices=leaf.dataset_indices,
        location=consumer.location if consumer else None,
    )


def _all_targets_ignored(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    for birth in evidence.births:
        site = birth.site
        notes = site.notes
        if not site.short.startswith("nll_loss") or birth.kind != "nan":
            continue
        kept, weight = notes.get("kept_targets"), notes.get("kept_weight")
        if kept == 0:
            ignored = int(notes["ignore_index"])
            title = f"every target of this batch is ignored (ignore_index={ignored})"
            text = (
                f"All {int(notes['targets'])} targets equal ignore_index={ignored}, so the mean is "
                "taken over no element: 0/0 = NaN."
            )
        elif weight == 0:
            title = "every kept target has class weight zero"
            text = (
                f"The class weights of the {int(kept or 0)} kept targets sum to 0, so the weighted "
                "mean is 0/0 = NaN."
            )
        else:
            continue
        yield birth_claim(
            rule,
            evidence,
            birth,
            title=title,
            explanation=text,
            exact=1.0,
            specificity=Specificity.EXACT,
            extra=[("targets", int(notes["targets"])), ("kept targets", int(kept or 0))],
            fixes=[
                Fix(
                    title='use reduction="sum" and divide by max(number of kept targets, 1), or '
                    "skip a batch without targets",
                    confidence="likely",
                    patch=sum_over_kept(site, int(notes["ignore_index"])) if kept == 0 else None,
                    remedy=Remedy(kind="kept-mean", location=site.location),
                )
            ],
        )


def _empty_reduction(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    for birth in evidence.births:
        site = birth.site
        empty = [fact for fact in site.inputs if fact.numel == 0]
        if site.short in _REDUCTIONS and empty and birth.kind == "nan":
            yield birth_claim(
                rule,
                evidence,
                birth,
                title=f"{site.short} of an empty tensor is NaN",
                explanation=f"The input of {site.short} has shape {list(empty[0].shape)}: nothing was "
                "selected in this step, and the mean of nothing is 0/0.",
                exact=1.0,
                specificity=Specificity.EXACT,
                extra=[("input shape", list(empty[0].shape)), ("made by", empty[0].label)],
                fixes=[
                    Fix(
                        title="divide a sum by max(count, 1), or skip the term when nothing is "
                        "selected",
                        confidence="likely",
                        patch=sum_over_count(site),
                        remedy=Remedy(kind="empty-mean", location=site.location),
                    )
                ],
            )


RULES = (
    Rule(
        code="ND101",
        name="non-finite-input",
        severity="critical",
        summary="NaN or inf in a batch",
        check=_non_finite_input,
        doc="""\
## What it checks
When a step goes wrong, the values are followed back to where they entered. If they were already NaN or inf in
the batch, the batch is to blame: the report gives the path in the batch, the samples and, where the loader's
sampler can tell, their indices in the data set.

## Why it matters
One bad record in a million poisons every weight in a single step, and nothing in the model is wrong.

## Example
    batch = {"image": ..., "age": tensor([31., nan, 54.])}

## Fix
Drop or repair the samples in the data set. Masking after the loss does not help: the gradient of a masked NaN
is 0 · NaN = NaN (see ND302).

## Options
None.

## See also
ND302 masked-branch-gradient
""",
    ),
    Rule(
        code="ND105",
        name="all-targets-ignored",
        severity="critical",
        summary="the loss is a mean over no target at all",
        check=_all_targets_ignored,
        doc="""\
## What it checks
A cross entropy (nll_loss) that came out NaN although its inputs are finite: were any targets kept?

## Why it matters
With every target equal to ignore_index the mean is 0/0 = NaN. The gradients are often exact zeros, so the
weights survive, but the logged loss, and whatever averages it, does not.

## Example
    F.cross_entropy(logits, torch.full((8,), -100))

## Fix
Skip such batches, or use reduction="sum" and divide by max(number of kept targets, 1).

## Options
None.

## See also
ND106 empty-reduction
""",
    ),
    Rule(
        code="ND106",
        name="empty-reduction",
        severity="critical",
        summary="mean, std or a loss of an empty selection",
        check=_empty_reduction,
        doc="""\
## What it checks
A mean, std, var or a mean-reduced loss whose input has no element in this step.

## Why it matters
A selection that is nearly always non-empty (positives, hard negatives, unmasked tokens) is empty once in a long
run, and that one step makes the loss NaN.

## Example
    loss = per_item[mask].mean()        # mask has no True in this batch

## Fix
Skip the term when nothing is selected, or divide a sum by max(count, 1).

## Options
None.

## See also
ND105 all-targets-ignored, ND202 division-by-zero
""",
    ),
)
