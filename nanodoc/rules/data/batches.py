"""ND107–ND110, ND112, ND114: batches that compute and teach little."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from nanodoc.diagnosis.claim import Claim, Specificity, Stage, confidence
from nanodoc.diagnosis.finding import Culprit, Finding, Fix
from nanodoc.diagnosis.rule import Rule
from nanodoc.diagnosis.thresholds import limit
from nanodoc.facts.calls import CLASSIFICATION, ArgumentFacts, CallFacts, StepCalls
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.loop import BatchLeaf
from nanodoc.rules.data.batch_docs import DOCS
from nanodoc.rules.learning.learning_base import calls_of

_STD = 100.0  # RULES, ND107
_FEWEST = 5
"""Samples of the rarest class: fewer are chance."""
_WORTH = 0.005
"""Seconds a step: waiting less than this for data is the loop's own overhead."""
_LAYERS = ("linear", "conv1d", "conv2d", "conv3d")
_NORMS = ("batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm")
_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_MASKS = (
    "ne",
    "eq",
    "gt",
    "lt",
    "ge",
    "le",
    "bool",
    "pack_padded_sequence",
    "masked_fill",
    "masked_select",
)


def _claim(
    rule: Rule,
    evidence: Evidence,
    leaf: str | None,
    *,
    title: str,
    explanation: str,
    weight: float,
    fix: str,
    notes: Iterable[tuple[str, object]] = (),
    severity: str | None = None,
    specificity: Specificity = Specificity.FAMILY,
    root: str = "",
) -> Claim:
    return Claim(
        root=("data", root or rule.name, leaf),
        specificity=specificity,
        stage=Stage.DATA,
        finding=Finding(
            code=rule.code,
            name=rule.name,
            severity=severity or rule.severity,
            confidence=weight,
            title=title,
            explanation=explanation,
            culprit=Culprit(kind="data", batch_path=leaf, location=evidence.data_site),
            phase="data",
            step=0,
            evidence=tuple((label, value) for label, value in notes if value is not None),
            fixes=(Fix(title=fix, confidence="likely"),),
        ),
    )


def _consumers(calls: StepCalls, leaf: str) -> list[CallFacts]:
    """The layers that take this part of the batch as it is."""
    found = []
    for call in calls.calls:
        if call.arguments and call.name in (*_LAYERS, *_RECURRENT):
            made = calls.origin(call.arguments[0])
            if isinstance(made, ArgumentFacts) and made.leaf == leaf:
                found.append(call)
    return found


def _normalised(calls: StepCalls, call: CallFacts) -> bool:
    """A normalisation comes right behind it, which undoes the scale."""
    for one in calls.calls:
        if one.name in _NORMS and one.arguments:
            made = calls.origin(one.arguments[0])
            if isinstance(made, CallFacts) and made.index == call.index:
                return True
    return False


def _unnormalised_input(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    calls, data = calls_of(evidence), evidence.data
    if data is None:
        return
    for leaf in data.leaves:
        largest = max(abs(leaf.minimum), abs(leaf.maximum))
        # a single sample that is far off is another matter
        most = limit(evidence, "unnormalised-input.largest")
        far = (
            abs(leaf.typical_mean) > limit(evidence, "unnormalised-input.mean")
            or leaf.typical > most
        )
        if not leaf.floating or not far or calls is None:
            continue
        used = [call for call in _consumers(calls, leaf.path) if not _normalised(calls, call)]
        if not used:
            continue
        where = used[0]
        place = where.module or "the first layer"
        yield _claim(
            rule,
            evidence,
            leaf.path,
            title=f"{leaf.path} goes unnormalised into {place}: values from {leaf.minimum:.3g} to "
            f"{leaf.maximum:.3g}",
            explanation=f"Its mean is {leaf.mean:.3g} and its standard deviation {leaf.std:.3g}; layers "
            "are initialised for inputs around 0 with a deviation of 1. The first updates are "
            "as much too large as the inputs are.",
            weight=confidence(
                0.6,
                0.4 if leaf.std > _STD or abs(leaf.mean) > _STD else 0.1,
                0.3 if largest > 10 * most else 0.0,
            ),
            notes=[
                ("mean", leaf.mean),
                ("standard deviation", leaf.std),
                ("range", f"{leaf.minimum:.4g} … {leaf.maximum:.4g}"),
                ("used by", where.module or None),
            ],
            fix="(x − mean) / std per feature, images as x / 255, or a normalisation layer first",
        )
        return


def _constant_batch(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    data, calls = evidence.data, calls_of(evidence)
    if data is None or data.batches < 3:
        return
    used = calls is None or any(_used(calls, leaf.path) for leaf in data.leaves)
    if data.loader and data.per_pass != 1 and used and data.identical >= data.batches - 1:
        yield _claim(
            rule,
            evidence,
            None,
            severity="critical",
            title=f"all of the last {data.batches} batches are the same",
            explanation="They were made anew and are equal to the last bit: the loop draws the same batch "
            "again and again.",
            weight=confidence(0.8, 0.5 if data.batches > 5 else 0.2),
            notes=[("identical batches", data.batches)],
            fix="iterate over the loader; `next(iter(loader))` begins anew each time, and a seed "
            "set in every step draws the same samples",
        )
        return
    inputs = [
        (leaf, taken)
        for leaf in data.leaves
        if calls is not None and (taken := _consumers(calls, leaf.path))
    ]
    if (
        calls is None
        or _ids(calls, data.leaves)
        or not all(leaf.floating and leaf.same_samples for leaf, _ in inputs)
    ):
        return  # a grid or a condition that all samples share stands beside inputs that differ
    targets = _targets(calls)
    if any(
        leaf.floating
        and not leaf.same_samples
        and leaf.path not in targets
        and _used(calls, leaf.path)
        for leaf in data.leaves
    ):
        return
    for leaf, taken in inputs:
        if taken:
            alike = f"{leaf.minimum:g} everywhere" if leaf.constant else "the same for every sample"
            yield _claim(
                rule,
                evidence,
                leaf.path,
                severity="critical",
                title=f"{leaf.path} is {alike}, in every batch",
                explanation=f"{taken[0].module or 'The model'} is given {list(leaf.shape)} values, and no "
                f"sample differs from another over {data.batches} batches: there "
                "is nothing to tell them apart by.",
                weight=confidence(
                    0.8, 0.5 if data.batches > 5 else 0.2, 0.3 if leaf.constant else 0.0
                ),
                notes=[
                    ("range", f"{leaf.minimum:.4g} … {leaf.maximum:.4g}"),
                    ("batches", data.batches),
                ],
                fix="look at how the samples are stored: one tensor that is written to in place "
                "and stored again and again stays one tensor (clone it)",
            )
            return


def _targets(calls: StepCalls) -> set[str | None]:
    """Parts of the batch that losses compare with."""
    found = set()
    for call in calls.calls:
        if (
            call.name.endswith(("_loss", "cross_entropy", "kl_div", "with_logits"))
            or call.name == "sub"
        ):
            for argument in call.arguments:
                made = calls.origin(argument, elementwise=True)
                if isinstance(made, ArgumentFacts):
                    found.add(made.leaf)
    return found


def _class_imbalance(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    calls = calls_of(evidence)
    for call in calls.calls if calls is not None else ():
        top, least = call.notes.get("top_count"), call.notes.get("least_count")
        if (
            top
            and least
            and least >= _FEWEST
            and top / least > limit(evidence, "class-imbalance.ratio")
        ):
            yield _claim(
                rule,
                evidence,
                None,
                title=f"one class is {top / least:.0f} times as frequent as another",
                explanation=f"Of the last batch's {call.notes['targets']:.0f} targets, {top:.0f} are of "
                f"class {call.notes['top_class']:.0f}.",
                weight=confidence(0.4, 0.4 if least >= 4 * _FEWEST else 0.1),
                notes=[("most frequent : least frequent", round(top / least, 1))],
                fix="class weights, sampling by class, or a metric that is not accuracy",
            )
            return


def _padding_dominated(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    calls, data = calls_of(evidence), evidence.data
    if calls is None or data is None:
        return
    ids = _ids(calls, data.leaves)
    loss = next(
        (one for one in calls.calls if one.name in CLASSIFICATION and one.notes.get("top_count")),
        None,
    )
    for leaf in ids:
        if loss is not None and leaf.top_value is not None:
            share = loss.notes["top_count"] / max(loss.notes["targets"] - loss.notes["ignored"], 1)
            if (
                share > limit(evidence, "padding-dominated.share")
                and not loss.notes["ignored"]
                and _is_its_own_target(calls, loss, leaf)
                and loss.notes["top_class"] == leaf.top_value
                and leaf.ragged
                and loss.notes["targets"] > leaf.shape[0]
            ):
                yield _counted(rule, evidence, leaf, share, loss)
                return
        if (
            leaf.top_share <= limit(evidence, "padding-dominated.share")
            or not leaf.ragged
            or _masked(calls, leaf, data.leaves)
            or (loss is not None and loss.notes["ignored"])
        ):
            continue
        yield _claim(
            rule,
            evidence,
            leaf.path,
            root="padding",
            title=f"{leaf.top_share:.0%} of {leaf.path} is the token {leaf.top_value:.0f}, and "
            "nothing masks it",
            explanation=f"Rows end in runs of {leaf.top_value:.0f} of different lengths, as padding does; "
            "the model reads them like any other token.",
            weight=confidence(0.5, 0.3 if leaf.top_share > 0.7 else 0.1),
            notes=[("share", round(leaf.top_share, 3)), ("token", leaf.top_value)],
            fix="mask the padding, pack the sequences, and put sequences of like length into one "
            "batch",
        )
        return


def _is_its_own_target(calls: StepCalls, loss: CallFacts, ids: BatchLeaf) -> bool:
    """The loss compares with the ids themselves: only there a class is a token."""
    made = calls.origin(loss.arguments[1]) if len(loss.arguments) > 1 else None
    return isinstance(made, ArgumentFacts) and made.leaf == ids.path


def _counted(
    rule: Rule, evidence: Evidence, leaf: BatchLeaf, share: float, loss: CallFacts
) -> Claim:
    claim = _claim(
        rule,
        evidence,
        leaf.path,
        root="padding",
        severity="critical",
        specificity=Specificity.SPECIAL,
        title=f"{share:.0%} of the targets are padding, and the loss counts them",
        explanation=f"The token {leaf.top_value:.0f} fills the ends of the rows of {leaf.path} and "
        f"{share:.0%} of what {loss.name} compares with: predicting padding is "
        "most of what the model is paid for.",
        weight=confidence(0.8, 0.4 if share > 0.7 else 0.1),
        notes=[
            ("share of the targets", round(share, 3)),
            ("token", leaf.top_value),
            ("ignored targets", loss.notes["ignored"]),
        ],
        fix=f"ignore_index={leaf.top_value:.0f}, or −100 in the targets where the input is padding",
    )
    culprit = Culprit(
        kind="data",
        op=loss.name,
        module=loss.module,
        module_type=loss.module_type,
        batch_path=leaf.path,
        location=loss.site,
    )
    return replace(claim, finding=replace(claim.finding, culprit=culprit, phase="forward"))


def _ids(calls: StepCalls, leaves: tuple[BatchLeaf, ...]) -> list[BatchLeaf]:
    """Parts of the batch that are looked up in an embedding."""
    looked_up = set()
    for call in calls.calls:
        if call.name == "embedding" and call.arguments:
            made = calls.origin(call.arguments[0])
            if isinstance(made, ArgumentFacts):
                looked_up.add(made.leaf)
    return [leaf for leaf in leaves if leaf.path in looked_up]


def _masked(calls: StepCalls, ids: BatchLeaf, leaves: tuple[BatchLeaf, ...]) -> bool:
    """Something is made of the ids besides their embedding, or the batch brings a mask or lengths
    along."""
    for call in calls.calls:
        if call.name in _MASKS or (
            call.name == "embedding" and call.options.get("padding_idx") is not None
        ):
            return True
    return any(
        leaf is not ids
        and leaf.shape == ids.shape
        and not leaf.constant
        and leaf.minimum >= 0
        and leaf.maximum == 1
        for leaf in leaves
    )


def _all_ones_mask(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    calls, data = calls_of(evidence), evidence.data
    if calls is None or data is None:
        return
    padded = [leaf for leaf in _ids(calls, data.leaves) if leaf.ragged and leaf.top_share > 0.05]
    for ids in padded:
        for leaf in data.leaves:
            if (
                leaf is ids
                or leaf.shape != ids.shape
                or not leaf.constant
                or leaf.maximum != 1
                or not _used(calls, leaf.path)
            ):
                continue
            yield _claim(
                rule,
                evidence,
                leaf.path,
                title=f"the mask {leaf.path} is 1 everywhere, though {ids.path} is padded",
                explanation=f"{ids.top_share:.0%} of {ids.path} is the token {ids.top_value:.0f}, in runs "
                f"of different lengths at the ends of its rows; over {data.batches} batches "
                "the mask beside it lets every position through.",
                weight=confidence(0.7, 0.4 if data.batches > 3 else 0.1),
                notes=[
                    ("mask", leaf.path),
                    ("padding token", ids.top_value),
                    ("share of padding", round(ids.top_share, 3)),
                ],
                fix=f"build the mask from the ids: mask = ids != {ids.top_value:.0f}",
            )
            return


def _used(calls: StepCalls, leaf: str) -> bool:
    return any(one.leaf == leaf for call in calls.calls for one in call.arguments)


def _slow_loader(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    data = evidence.data
    if (
        data is None
        or data.load_share is None
        or data.load_share <= limit(evidence, "slow-loader.share")
        or data.load_seconds < _WORTH
        or len(evidence.losses) < 10
    ):
        return
    yield _claim(
        rule,
        evidence,
        None,
        title=f"{data.load_share:.0%} of the time is spent waiting for the data",
        explanation=f"A step waits {1000 * data.load_seconds:.0f} ms for its batch.",
        weight=confidence(0.5, 0.5 if len(evidence.losses) > 50 else 0.2),
        notes=[("share of the time", round(data.load_share, 3))],
        fix="num_workers, pin_memory, and less work per sample",
    )


def _rule(
    code: str,
    name: str,
    severity: str,
    summary: str,
    check: Callable[[Rule, Evidence], Iterable[Claim]],
) -> Rule:
    return Rule(
        code=code, name=name, severity=severity, summary=summary, check=check, doc=DOCS[code]
    )


RULES = (
    _rule(
        "ND107",
        "unnormalised-input",
        "warning",
        "inputs far from mean 0 and deviation 1",
        _unnormalised_input,
    ),
    _rule(
        "ND108",
        "constant-batch",
        "critical",
        "the same batch, or the same value, again and again",
        _constant_batch,
    ),
    _rule(
        "ND109",
        "class-imbalance",
        "info",
        "one class far more frequent than another",
        _class_imbalance,
    ),
    _rule(
        "ND110",
        "padding-dominated",
        "warning",
        "most of what the model reads, or is asked for, is padding",
        _padding_dominated,
    ),
    _rule(
        "ND112",
        "slow-loader",
        "info",
        "more time is spent waiting for data than computing",
        _slow_loader,
    ),
    _rule(
        "ND114",
        "all-ones-mask",
        "warning",
        "a mask that masks nothing beside padded ids",
        _all_ones_mask,
    ),
)
