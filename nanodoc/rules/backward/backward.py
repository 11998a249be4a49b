"""ND301, ND302, ND304: gradients that are infinite or NaN although the loss is fine."""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity
from nanodoc.diagnosis.finding import Fix, Remedy
from nanodoc.diagnosis.rule import Rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.failure import Failure
from nanodoc.facts.ops import Birth, OpFacts
from nanodoc.rules.base import birth_claim, count
from nanodoc.rules.crash.failures import failure_claim
from nanodoc.rules.forward.guards import guards, harmless
from nanodoc.rules.rewrite import guard

# op -> (the singular point in words, the derivative)
_DERIVATIVES = {
    "sqrt": ("zero", "1/(2·sqrt(x))"),
    "pow": ("zero", "n·x^(n−1)"),
    "acos": ("±1", "−1/sqrt(1 − x²)"),
    "asin": ("±1", "1/sqrt(1 − x²)"),
    "acosh": ("1", "1/sqrt(x² − 1)"),
    "atanh": ("±1", "1/(1 − x²)"),
    "xlogy": ("a second argument of zero", "log(y) and x/y"),
    "atan2": ("(0, 0)", "x/(x² + y²)"),
    "log": ("zero", "1/x"),
    "log2": ("zero", "1/(x·ln 2)"),
    "log10": ("zero", "1/(x·ln 10)"),
    "log1p": ("−1", "1/(1 + x)"),
    "rsqrt": ("zero", "−x^(−3/2)/2"),
    "reciprocal": ("zero", "−1/x²"),
    "div": ("a zero divisor", "1/y and −x/y²"),
    "norm": ("the zero vector", "x/|x|"),
    "linalg_vector_norm": ("the zero vector", "x/|x|"),
    "hypot": ("(0, 0)", "x/hypot(x, y)"),
    "cdist_forward": ("two equal points", "(x − y)/|x − y|"),
    "erfinv": ("±1", "sqrt(π)/2·exp(erfinv(x)²)"),
    "logit": ("0 or 1", "1/(x·(1 − x))"),
}
_DECOMPOSITIONS = (
    "eigh",
    "eig",
    "svd",
    "qr",
    "inv",
    "cholesky",
    "solve",
    "lu",
    "slogdet",
    "pinv",
    "lstsq",
    "det",
    "lobpcg",
)


def _is_decomposition(birth: Birth) -> bool:
    name = birth.site.short
    return (
        name.startswith("linalg_") and any(part in name for part in _DECOMPOSITIONS)
    ) or name in (
        "cholesky",
        "logdet",
        "inverse",
        "triangular_solve",
        "cholesky_solve",
    )


def _singular_share(birth: Birth) -> float:
    """How many of the failing elements had a zero (or inf) at hand: 1 when one input of the failing
    op is all zero there."""
    shares = [at.zeros / at.count for at in birth.op.values_at if at is not None and at.count]
    return max(shares, default=0.0)


def _infinite_gradient(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    for birth in evidence.births:
        if birth.phase != "backward" or birth.saved_nonfinite or _is_decomposition(birth):
            continue
        # finite in float32: the dtype is at fault (ND305), not the derivative
        if birth.op.upcast_absmax is not None:
            continue
        site = birth.site
        known = _DERIVATIVES.get(site.short) if birth.forward is not None else None
        if known is None:
            yield _unnamed(rule, evidence, birth, site)
            continue
        point, derivative = known
        zeros = _zeros(site)
        title = f"keep the argument of {site.short} away from {point}"
        yield birth_claim(
            rule,
            evidence,
            birth,
            title=f"{site.short} of {point} has an infinite gradient"
            if point != "a zero divisor"
            else "division by zero has an infinite gradient",
            explanation=f"The derivative {derivative} is infinite at {point}. {zeros}"
            + (
                " The gradient that arrives there is 0, and 0 · inf = NaN."
                if birth.zero_gradient
                else ""
            ),
            exact=max(_singular_share(birth), 0.5),
            extra=[
                *_input_evidence(site),
                ("autograd node", birth.op.node),
                ("bad gradient elements", sum(f.nonfinite for f in birth.op.outputs)),
            ],
            fixes=guards(site, title) or [Fix(title=title, confidence="likely")],
        )


def _unnamed(rule: Rule, evidence: Evidence, birth: Birth, site: OpFacts) -> Claim:
    return birth_claim(
        rule,
        evidence,
        birth,
        title=f"the backward of {site.short} makes a non-finite gradient",
        explanation=f"{birth.op.short} under {birth.op.node} gets finite values and gives {birth.kind}; "
        "the forward pass is finite throughout.",
        exact=_singular_share(birth) * 0.5,
        specificity=Specificity.FALLBACK,
        extra=_input_evidence(birth.op),
    )


def _zeros(site: OpFacts) -> str:
    if not site.inputs:
        return ""
    fact = site.inputs[1] if site.short == "div" and len(site.inputs) > 1 else site.inputs[0]
    if fact.zeros:
        return f"{fact.zeros} of {fact.numel} inputs (from {fact.label}) are exactly 0."
    if fact.minimum is not None and fact.maximum is not None:
        return f"The input (from {fact.label}) lies in {fact.minimum:.6g} … {fact.maximum:.6g}."
    return ""


def _input_evidence(site: OpFacts) -> list[tuple[str, object]]:
    found: list[tuple[str, object]] = []
    for fact in site.inputs[:2]:
        found += [
            (f"minimum of {fact.label}", fact.minimum),
            (f"maximum of {fact.label}", fact.maximum),
            (f"zeros in {fact.label}", fact.zeros),
        ]
    return found


def _masked_branch_gradient(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    for birth in evidence.births:
        if birth.phase != "backward" or _is_decomposition(birth):
            continue
        masked = birth.masked_by is not None and birth.zero_gradient
        if not (birth.saved_nonfinite or masked):
            continue
        site = birth.site
        source = birth.source
        if birth.masked_by is not None:
            where = birth.masked_by.location
            mask = f"{birth.masked_by.short}" + (f" at {where.file}:{where.line}" if where else "")
        else:
            mask = "a later op"
        if source is not None and source.kind == "batch":
            title = f"{site.short} meets NaN in {source.name} that is masked only afterwards"
            text = (
                f"{source.name} holds {count(source.facts.nonfinite, 'non-finite value')}. They "
                f"are masked out of the loss after {site.short}, but its gradient there is 0 · NaN "
                "= NaN."
            )
            fixes = [
                *_without_nan(site, source.name),
                Fix(
                    title=f"select the valid elements before {site.short}, not after it",
                    confidence="likely",
                ),
            ]
        else:
            title = (
                f"{site.short} sends NaN back from elements that {mask.split(' at ')[0]} discards"
            )
            bad = sum(fact.nonfinite for fact in birth.op.outputs)
            text = (
                f"{mask} discards the elements where {site.short} is singular, so the loss is "
                "finite. Backward multiplies their zero gradient by the infinite derivative of "
                f"{site.short}: 0 · inf = NaN at {count(bad, 'element')}."
            )
            title_ = (
                f"replace the argument of {site.short} by a harmless value where it is masked, "
                f"before {site.short} (a where inside and outside)"
            )
            fixes = guards(site, title_) or [Fix(title=title_, confidence="likely")]
        yield birth_claim(
            rule,
            evidence,
            birth,
            title=title,
            explanation=text,
            exact=1.0 if masked or source is not None else 0.7,
            specificity=Specificity.SPECIAL,
            extra=[*_input_evidence(site), ("discarded by", mask)],
            fixes=fixes,
        )


def _without_nan(site: OpFacts, name: str) -> list[Fix]:
    """NaN of the batch replaced by 0 in the argument that it reaches: it is masked afterwards
    anyway."""
    at = next(
        (i for i, fact in enumerate(site.inputs) if fact.label == name and fact.nonfinite), None
    )
    return (
        []
        if at is None
        else [
            harmless(
                site,
                at,
                f"give {site.short} a harmless value where {name} is NaN: it is masked afterwards",
            )
        ]
    )


def _degenerate_decomposition(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    for birth in evidence.births:
        if not _is_decomposition(birth):
            continue
        site = birth.site
        yield birth_claim(
            rule,
            evidence,
            birth,
            title=f"{site.short} of a degenerate matrix "
            + ("has no finite gradient" if birth.phase == "backward" else "has no finite result"),
            explanation="The gradient divides by differences of eigenvalues or singular values (or by the "
            "values themselves); equal, zero or nearly equal ones make it infinite."
            if birth.phase == "backward"
            else f"{site.short} gives {birth.kind} for finite input: the matrix is singular or "
            "nearly so.",
            exact=0.8,
            specificity=Specificity.SPECIAL,
            extra=_input_evidence(site),
            fixes=_jitter(site),
        )
    failure = evidence.failure
    if failure is not None and failure.type in ("LinAlgError", "_LinAlgError"):
        yield failure_claim(
            rule,
            evidence,
            title=f"the decomposition failed: {failure.message.splitlines()[0][:120]}",
            explanation=f"torch.linalg refused the matrix: {failure.message.splitlines()[0]}",
            fixes=_jitter_at_failure(failure),
            specificity=Specificity.SPECIAL,
        )


def _jitter_at_failure(failure: Failure) -> list[Fix]:
    name, where = failure.torch_function, failure.frames[-1] if failure.frames else None
    remedy = (
        Remedy(
            kind="argument",
            location=where,
            op=name,
            template="{x} + 1e-4 * torch.eye({x}.shape[-1])",
        )
        if name and where
        else None
    )
    return [
        Fix(
            title="add a small multiple of the identity (1e-4) to the matrix",
            confidence="maybe",
            remedy=remedy,
        )
    ]


def _jitter(site: OpFacts) -> list[Fix]:
    """Eigenvalues and singular values must be distinct for a gradient; an inverse or a factor only
    needs them away from zero."""
    if any(name in site.short for name in ("eig", "svd")):
        title, templates = (
            "add small distinct numbers to the diagonal of the matrix",
            (
                "{x} + torch.diag(torch.linspace(1e-5, 1e-4, {x}.shape[-1]))",
                "{x} + torch.diag(torch.linspace(1e-3, 1e-2, {x}.shape[-1]))",
            ),
        )
    else:
        title, templates = (
            "add a small multiple of the identity to the matrix",
            ("{x} + 1e-6 * torch.eye({x}.shape[-1])", "{x} + 1e-4 * torch.eye({x}.shape[-1])"),
        )
    return [guard(title, site, template, confidence="maybe") for template in templates]


RULES = (
    Rule(
        code="ND301",
        name="infinite-gradient",
        severity="critical",
        summary="the derivative is infinite at this input: sqrt, norm, pow<1 at 0, acos at ±1",
        check=_infinite_gradient,
        doc="""\
## What it checks
Loss and forward pass are finite, a gradient is not: the first backward op that makes a non-finite value from
finite ones is found, and followed to the forward call whose derivative it computes.

## Why it matters
sqrt(0) is 0, its derivative is 1/0. The step's loss looks fine; one optimizer step later every weight is NaN.
Anomaly mode stays silent where the result is inf and not NaN.

## Example
    pooled = torch.sqrt(x.pow(2).mean(1))        # a row of zeros

## Fix
Keep the argument away from the singular point, before the function: torch.sqrt(x + 1e-12). Masking the result
afterwards does not help (ND302).

## Options
None.

## See also
ND302 masked-branch-gradient, ND201 domain-error
""",
    ),
    Rule(
        code="ND302",
        name="masked-branch-gradient",
        severity="critical",
        summary="the branch that `where` discards still sends 0 · inf = NaN back",
        check=_masked_branch_gradient,
        doc="""\
## What it checks
A NaN gradient at elements that the forward pass discards (where, masked_fill, a boolean index, nan_to_num), so
that the loss is finite: a zero gradient met an infinite derivative, or a NaN that was masked only after the op.

## Why it matters
where(c, f(x), g(x)) computes both branches, and backward runs through both: 0 · inf = NaN.

## Example
    y = torch.where(x > 0, torch.sqrt(x), 0.0)
    loss = F.huber_loss(pred, target, reduction="none")[~target.isnan()].mean()

## Fix
Make the argument harmless before the function: torch.sqrt(torch.where(x > 0, x, 1.0)) inside the where; select
the valid elements before the loss.

## Options
None.

## See also
ND301 infinite-gradient, ND101 non-finite-input
""",
    ),
    Rule(
        code="ND304",
        name="degenerate-decomposition",
        severity="critical",
        summary="svd, eigh, qr, inverse or cholesky of a degenerate matrix",
        check=_degenerate_decomposition,
        doc="""\
## What it checks
A decomposition or solve whose gradient (or result) is non-finite for finite input, or that torch refused.

## Why it matters
The gradients of svd and eigh divide by differences of singular values or eigenvalues: equal ones (an identity
covariance, a symmetric input at initialisation) have none.

## Example
    values, vectors = torch.linalg.eigh(torch.eye(3))

## Fix
Add distinct jitter to the diagonal, or use a loss that needs only the values.

## Options
None.

## See also
ND301 infinite-gradient
""",
    ),
)
