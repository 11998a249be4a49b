"""## What it checks
The sign of loss terms for which only one sign makes sense: the entropy of a policy
(`dist.entropy()` together with weighted log-probabilities), the KL term of a variational
autoencoder whose latent is drawn as `mu + std * noise`, and a norm or a sum of squares of a trained
parameter. Only steps with a single minimising optimizer are checked.

## Why it matters
A policy that is rewarded for certainty stops exploring. A KL term or a weight decay with the wrong
sign makes the loss unbounded below: the posterior or the weights run away, and the loss looks
better and better.

## Example
    loss = policy_loss + 0.01 * dist.entropy().mean()

## Fix
    loss = policy_loss - 0.01 * dist.entropy().mean()

## See also
ND641 maximised-loss, ND636 minimised-return; Mnih et al. 2016, Asynchronous methods for deep
reinforcement learning, section 4; Kingma & Welling 2014, Auto-Encoding Variational Bayes
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.calls import CallFacts, StepCalls
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.latents import latent_of, nats_of, value_of
from nanodoc.facts.loss_terms import Term, terms_of
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import WIRED, at_call, calls_of, learning_claim
from nanodoc.vocabulary.calls import NORMS, POWERS, REDUCTIONS

_SQUARES = (*POWERS, "abs", "mul")
_DEEPEST = 12  # calls between a reduced entropy and the distribution, or a weight and log_prob()


@rule(
    "ND649",
    "rewarded-penalty",
    "warning",
    "a penalty or a bonus with the wrong sign",
    needs=("inspection",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    inspection, calls = evidence.inspection, calls_of(evidence)
    if inspection is None or calls is None or inspection.maximised:
        return
    if len(evidence.optimizer_sites) > 1:  # an adversary's turn
        return
    for position in calls.losses:
        for term in terms_of(calls, calls.calls[position]):
            slope = term.call.notes.slope
            what = _wrong(calls, term.call, slope) if slope else None
            if what is not None:
                yield _claim(rule, evidence, term, what)
                return


def _claim(rule: Rule, evidence: Evidence, term: Term, what: str) -> Claim:
    at = term.turned or term.call
    way = {
        "entropy": "makes the policy more certain: its entropy is a bonus",
        "KL": "drives the posterior away from the prior: its KL divergence is a penalty",
        "norm": "makes the weights larger: their size is a penalty",
    }[what]
    value = value_of(term.call)
    return learning_claim(
        rule,
        location_key(at.site) or ("sign", what),
        title=f"training {way}",
        explanation="In the loss, this term has the opposite sign. The gradient of the last "
        "step's loss shows it, and the only optimizer minimises the loss.",
        culprit=at_call(at, evidence),
        step=len(evidence.losses) - 1,
        weight=0.85,
        notes=[
            ("slope of the loss along the term", f"{term.call.notes.slope:.3g}"),
            ("the term's value", f"{value:.3g}" if value is not None else None),
        ],
        fix="flip the sign of the term",
        standing=WIRED,
    )


def _wrong(calls: StepCalls, call: CallFacts, slope: float) -> str | None:
    """What is moved the wrong way by a step that goes down a loss of this slope."""
    if slope > 0 and _is_entropy(calls, call) and _has_policy_gradient(calls):
        return "entropy"
    if slope < 0 and _is_size_of_weights(calls, call):
        return "norm"
    latent, value = latent_of(calls), value_of(call)
    if latent is None or value is None or call.name not in REDUCTIONS or not call.arguments:
        return None
    # the sum is -2 KL or KL, and which of the two its own sign says
    if slope * value < 0 and nats_of(calls, latent, call, call) is not None:
        return "KL"
    return None


def _is_entropy(calls: StepCalls, call: CallFacts) -> bool:
    """What `.entropy()` of a distribution gave, or its sum or mean."""
    made: CallFacts | None = call
    for _ in range(_DEEPEST):
        if made is None:
            return False
        if _is_of(made, ".entropy()"):
            return True
        if made.name not in REDUCTIONS and not made.same_values:
            return False
        made = calls.maker(made.arguments[0]) if made.arguments else None
    return False


def _has_policy_gradient(calls: StepCalls) -> bool:
    """Log-probabilities of a distribution are weighted with numbers that nothing learns from."""
    for call in calls.calls:
        if call.name != "mul" or len(call.arguments) != 2:
            continue
        learning = [argument for argument in call.arguments if argument.requires_grad]
        made = calls.maker(learning[0]) if len(learning) == 1 else None
        for _ in range(_DEEPEST):
            if made is None or not made.arguments:
                break
            if _is_of(made, ".log_prob("):
                return True
            made = calls.maker(
                next((a for a in made.arguments if a.requires_grad), made.arguments[0])
            )
    return False


def _is_of(call: CallFacts, method: str) -> bool:
    """The method of a distribution made it."""
    expression = call.site.expression if call.site is not None else None
    if expression is None:
        return False
    return expression.endswith(method) if method.endswith(")") else method in expression


def _is_size_of_weights(calls: StepCalls, call: CallFacts) -> bool:
    """A norm of a parameter, its square, or a sum of its squares or sizes."""
    made: CallFacts | None = call
    if call.name in POWERS and call.arguments:
        made = calls.maker(call.arguments[0])
        return made is not None and made.name in NORMS and _is_trained(made)
    if call.name in NORMS:
        return _is_trained(call)
    made = calls.maker(call.arguments[0]) if call.name in REDUCTIONS and call.arguments else None
    return made is not None and made.name in _SQUARES and _is_trained(made)


def _is_trained(call: CallFacts) -> bool:
    """All that it is made of is one parameter that has gradients."""
    names = {argument.parameter for argument in call.arguments}
    return (
        len(names) == 1
        and None not in names
        and all(argument.requires_grad for argument in call.arguments)
        and (call.name != "mul" or len(call.arguments) > 1)
    )
