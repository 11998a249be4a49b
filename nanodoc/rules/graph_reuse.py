"""ND503, ND504, ND511, ND512: graphs used twice, tensors overwritten, gradients of the wrong shape. Both ends are named."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from nanodoc.evidence import Evidence, OpFacts, SourceSpan
from nanodoc.graph_evidence import graph_failure
from nanodoc.report.model import Culprit, Finding, Fix
from nanodoc.rules.base import Claim, Rule, confidence, effects, location_key


def _family(evidence: Evidence) -> str | None:
    return graph_failure(evidence.failure.message) if evidence.failure is not None else None


def _claim(
    rule: Rule,
    evidence: Evidence,
    where: SourceSpan | None,
    *,
    title: str,
    explanation: str,
    op: OpFacts | None = None,
    other: tuple[str, SourceSpan | None] | None = None,
    parameter: str | None = None,
    fixes: tuple[Fix, ...] = (),
    sure: float = 0.5,
    fit: int = 20,
) -> Claim:
    failure = evidence.failure
    assert failure is not None
    notes: list[tuple[str, object]] = []
    if other is not None and other[1] is not None:
        span = other[1]
        notes.append((other[0], f"{span.file}:{span.line}: {span.code.splitlines()[0]}"))
    verified = any(fix.verified for fix in fixes)
    return Claim(
        root=location_key(where) or ("failure",),
        fit=fit,
        finding=Finding(
            code=rule.code,
            name=rule.name,
            severity=rule.severity,
            confidence=confidence(0.5, sure, 0.4 if where else 0.0, 0.6 if verified else 0.0),
            title=title,
            explanation=explanation,
            culprit=Culprit(
                kind="op",
                op=op.op if op else failure.torch_function,
                module=op.module if op else None,
                module_type=op.module_type if op else None,
                parameter=parameter,
                location=where,
            ),
            phase="forward" if op is not None else failure.phase,
            step=evidence.failure_step,
            evidence=tuple(notes),
            effects=effects(evidence),
            experiments=tuple({"name": "the fix", "outcome": "the step succeeds", "loss": None} for fix in fixes if fix.verified),
            fixes=fixes,
        ),
    )


def _frame(evidence: Evidence) -> SourceSpan | None:
    failure = evidence.failure
    return failure.frames[-1] if failure is not None and failure.frames else None


# -- ND503 -------------------------------------------------------------------------------------------------------------


def _backward_twice(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    graph = evidence.graph
    family = _family(evidence)
    # a kept buffer written in place at the start of a step: torch meets the write before the freed graph
    kept = family == "overwritten" and graph is not None and graph.overwrite is None and bool(graph.carried)
    if family != "backward-twice" and not kept:
        return
    detached = graph is not None and ("carried", "detach") in graph.verified
    if graph is not None and graph.carried:
        carried = graph.carried[0]
        where = carried.kept_at or carried.reader.location
        name = carried.name or "a tensor"
        what = "buffer" if carried.is_buffer else "state"
        yield _claim(
            rule,
            evidence,
            where,
            title=f"{name} carries the graph of an earlier step into this one",
            explanation=f"The {what} {name} still hangs on the graph that made it ({carried.node}). This step's loss depends on it, so backward() "
            "walks into that graph, which the step before has already freed. retain_graph=True would only make every step slower than the last.",
            op=carried.reader,
            other=("read at", carried.reader.location) if carried.kept_at else None,
            fixes=(
                Fix(
                    title=f"detach {name} before it is kept",
                    patch=detached_assignment(carried.kept_at),
                    verified=detached or None,
                    confidence="machine" if detached else "likely",
                ),
            ),
            sure=0.7,
        )
        return
    calls = graph.backward_calls if graph is not None else ()
    if graph is not None and len(calls) > 1:
        shared, first, last = graph.shared_reader, calls[0], calls[-1]
        if graph.same_loss or shared is None:
            yield _claim(
                rule,
                evidence,
                last or _frame(evidence),
                title="backward() is called twice on one loss",
                explanation="The first call freed the graph; the gradients it left are already those of this loss.",
                other=("first call", first),
                fixes=(Fix(title="call backward() once per loss", confidence="likely"),),
            )
        else:
            yield _claim(
                rule,
                evidence,
                shared.location or first,
                title="two losses share a graph that the first backward() frees",
                explanation="The first loss is computed through ops that the second loss needs as well. If the first is not meant to train "
                "what lies before this line (a discriminator's step), detach its input; else add the losses and call backward() once.",
                op=shared,
                other=("freed at", first),
                fixes=(Fix(title="detach the input here, or call backward() once on the sum of the losses", confidence="likely"),),
            )
        return
    yield _claim(
        rule,
        evidence,
        _frame(evidence),
        title="backward() walks through a graph that was already freed",
        explanation="Something this step used was computed before it, with a graph that an earlier backward() or autograd.grad() freed. "
        "What kept it was not found among the model's attributes and the variables of the loss function.",
        sure=0.2,
        fit=10,
    )


# -- ND504 -------------------------------------------------------------------------------------------------------------


def _in_place_overwrite(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    family = _family(evidence)
    if family == "view-write":
        yield _view_write(rule, evidence)
        return
    if family != "overwritten" or (evidence.graph is not None and evidence.graph.overwrite is None and evidence.graph.carried):
        return
    found = evidence.graph.overwrite if evidence.graph is not None else None
    if found is None or found.overwritten_by is None:
        yield _claim(
            rule,
            evidence,
            _frame(evidence),
            title="a tensor that backward needs was overwritten in place",
            explanation="When the step was run again the write was not seen; torch's message names the tensor.",
            sure=0.1,
            fit=10,
        )
        return
    saved = found.saved_by
    saver = f"{saved.short}" if saved is not None else "an op"
    where = found.optimizer_call or found.overwritten_by.location
    shape = list(found.shape)
    if found.optimizer_call is not None:
        title = "the optimizer stepped between a forward pass and its backward"
        explanation = (
            f"{saver} saved {found.leaf.removeprefix('param:') if found.leaf else 'a parameter'} {shape} for its derivative, and this step() "
            "overwrote it before the derivative was taken."
        )
        fixes = (Fix(title="call every backward() first, or run the forward pass again after step()", confidence="likely"),)
    else:
        writer = found.overwritten_by
        title = f"{writer.short}_ overwrites a tensor that backward needs"
        explanation = f"{saver} saved this tensor {shape} for its derivative; the in-place {writer.short}_ then changed it."
        verified = any(kind == "out-of-place" for _, kind in evidence.graph.verified) if evidence.graph else False
        fixes = (
            Fix(
                title="write the result to a new tensor",
                patch=out_of_place(writer.location),
                verified=verified or None,
                confidence="machine" if verified else "likely",
            ),
        )
    yield _claim(
        rule,
        evidence,
        where,
        title=title,
        explanation=explanation,
        op=found.overwritten_by,
        other=("saved at", saved.location if saved else None),
        fixes=fixes,
        sure=0.8,
    )


def _view_write(rule: Rule, evidence: Evidence) -> Claim:
    where = _frame(evidence)
    return _claim(
        rule,
        evidence,
        where,
        title="an in-place write to a view that autograd cannot follow",
        explanation="Views that come out of one call together (unbind, split, chunk, iteration over a tensor), or that were made under no_grad, "
        "can't be written to in place where gradients are needed.",
        fixes=(Fix(title="write the result to a new tensor", patch=out_of_place(where), confidence="likely"),),
    )


_SIGNS: dict[type, str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**", ast.MatMult: "@",
}  # fmt: skip


def detached_assignment(span: SourceSpan | None) -> str | None:
    """`self.h = h` as `self.h = h.detach()`; None where the line is more than that."""
    tree = _statement(span)
    if not isinstance(tree, ast.Assign) or len(tree.targets) != 1 or not isinstance(tree.value, (ast.Name, ast.Attribute)):
        return None
    return f"{ast.unparse(tree.targets[0])} = {ast.unparse(tree.value)}.detach()"


def out_of_place(span: SourceSpan | None) -> str | None:
    """`x /= n` as `x = x / n`, `x.mul_(2)` as `x = x.mul(2)`; None where the line is neither, or writes to a part of `x`."""
    tree = _statement(span)
    whole = (ast.Name, ast.Attribute)
    if isinstance(tree, ast.AugAssign) and isinstance(tree.target, whole):
        assert span is not None
        target, sign = ast.unparse(tree.target), _SIGNS.get(type(tree.op))
        value = ast.get_source_segment(span.code.strip(), tree.value)
        if not isinstance(tree.value, (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Constant)):
            value = f"({value})"
        return f"{target} = {target} {sign} {value}" if sign is not None else None
    call = tree.value if isinstance(tree, ast.Expr) else None
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and isinstance(call.func.value, whole):
        name = call.func.attr
        if name.endswith("_") and not name.endswith("__"):
            call.func.attr = name.rstrip("_")
            return f"{ast.unparse(call.func.value)} = {ast.unparse(call)}"
    return None


def _statement(span: SourceSpan | None) -> ast.stmt | None:
    """The one statement of a line, None where the line is only a piece of one."""
    try:
        body = ast.parse(span.code.strip()).body if span is not None else []
    except SyntaxError:
        return None
    return body[0] if len(body) == 1 else None


# -- ND510 -------------------------------------------------------------------------------------------------------------


def _growing_graph(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    if evidence.failure is not None:
        return
    for growing in evidence.growing:
        where = growing.kept_at
        nodes = " → ".join(map(str, growing.nodes))
        yield Claim(
            root=location_key(where) or ("growing", growing.name),
            fit=15,
            order=9_500,
            finding=Finding(
                code=rule.code,
                name=rule.name,
                severity=rule.severity,
                confidence=confidence(0.7, 0.3 if where else 0.0),
                title=f"{growing.name} keeps the graph of every step",
                explanation=f"Behind {growing.name} hang more autograd nodes after each step ({nodes}), and with them whatever those steps saved.",
                culprit=Culprit(kind="op", location=where),
                phase="forward",
                step=None,
                evidence=(("autograd nodes, step by step", nodes),),
                fixes=(
                    Fix(
                        title=f"keep numbers, not graphs: add .detach() (or .item()) to what goes into {growing.name}", confidence="likely"
                    ),
                ),
            ),
        )


# -- ND511, ND512 --------------------------------------------------------------------------------------------------------


def _in_place_on_leaf(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    if _family(evidence) != "leaf-write":
        return
    graph = evidence.graph
    name = graph.leaf_write if graph is not None else None
    registered = next((p.registered_at for p in graph.parameters if p.name == name), None) if graph is not None else None
    what = f"parameter {name}" if name else "a leaf tensor that requires gradient"
    yield _claim(
        rule,
        evidence,
        _frame(evidence),
        title=f"{what} is written to in place",
        explanation="A leaf's own values are what the optimizer updates; autograd refuses to change them inside a graph.",
        parameter=name,
        other=("made at", registered),
        fixes=(
            Fix(title="write to a new tensor, or under torch.no_grad() where the value itself is meant to change", confidence="likely"),
        ),
        sure=0.8 if name else 0.5,
    )


def _gradient_shape(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    graph = evidence.graph
    family = _family(evidence)
    if graph is None or (evidence.failure is not None and family != "gradient-shape"):
        return
    for mismatch in graph.mismatches[:1]:
        where = mismatch.returned_at or (mismatch.op.location if mismatch.op else None)
        yield Claim(
            root=location_key(where) or ("failure",),
            fit=20,
            finding=Finding(
                code=rule.code,
                name=rule.name,
                severity="critical" if evidence.failure is not None else "warning",
                confidence=confidence(0.8, 0.4 if where else 0.0),
                title=f"a custom backward returns a gradient that does not fit its input: {mismatch.got} for {mismatch.expected}",
                explanation=f"Input {mismatch.position} of {mismatch.node} is {mismatch.expected}; the gradient returned for it is {mismatch.got}. "
                + ("autograd refuses it." if evidence.failure else "autograd sums or casts it silently, which is rarely what was meant."),
                culprit=Culprit(
                    kind="op", node=mismatch.node, module=mismatch.op.module if mismatch.op else None,
                    module_type=mismatch.op.module_type if mismatch.op else None, location=where,
                ),
                phase="backward",
                step=graph.step,
                effects=effects(evidence),
                fixes=(Fix(title="return a gradient of the shape and dtype of each input", confidence="likely"),),
            ),
        )  # fmt: skip
    if not graph.mismatches and family == "gradient-shape":
        yield _claim(
            rule, evidence, _frame(evidence), title="a custom backward returns a gradient that does not fit its input",
            explanation="As torch's message says; the function could not be told by running the step again.", sure=0.2, fit=10,
        )  # fmt: skip


RULES = (
    Rule(
        code="ND503",
        name="backward-twice",
        severity="critical",
        summary="backward() walks through a graph that was already freed",
        check=_backward_twice,
        doc="""\
## What it checks
"Trying to backward through the graph a second time." The step is run again to see which tensor led into a graph that is
gone: a hidden state or buffer kept from the step before, a loss on which backward() is called twice, or two losses that share
a part of the graph. Both ends are named: the line that kept the tensor and the one that read it, or the two backward calls.

## Why it matters
retain_graph=True silences the error; the graph then grows with every step, until memory or patience ends.

## Example
    out, self.hidden = self.rnn(x, self.hidden)

## Fix
    self.hidden = hidden.detach()

## Options
None.

## See also
ND504 in-place-overwrite, ND510 growing-graph
""",
    ),
    Rule(
        code="ND504",
        name="in-place-overwrite",
        severity="critical",
        summary="a tensor that backward needs was overwritten",
        check=_in_place_overwrite,
        doc="""\
## What it checks
"One of the variables needed for gradient computation has been modified by an inplace operation." The step is run again and
every saved tensor's version is checked as autograd checks it: the op that saved it and the op that overwrote it are both named, or
the optimizer.step() that came between a forward pass and its backward.

## Why it matters
The error is raised in backward, far from either line, and its hint (anomaly detection) names the op that saved, not the one that wrote.

## Example
    norm = x.pow(2).sum(1, keepdim=True).sqrt()      # pow saves x
    x /= norm                                        # and this overwrites it

## Fix
    x = x / norm

## Options
None.

## See also
ND503 backward-twice, ND511 in-place-on-leaf
""",
    ),
    Rule(
        code="ND510",
        name="growing-graph",
        severity="warning",
        summary="something kept across steps holds on to every step's graph",
        check=_growing_graph,
        doc="""\
## What it checks
Attributes of the model's modules and variables of the loss function or train_step that hold tensors with a graph, and whether
the number of autograd nodes behind them grows from step to step (looked at in the first four).

## Why it matters
Every step's graph stays in memory: it grows until the process is killed.

## Example
    self.total += loss      # for the log

## Fix
    self.total += loss.detach()

## Options
None.

## See also
ND503 backward-twice
""",
    ),
    Rule(
        code="ND511",
        name="in-place-on-leaf",
        severity="critical",
        summary="a parameter is written to in place inside the graph",
        check=_in_place_on_leaf,
        doc="""\
## What it checks
"A leaf Variable that requires grad is being used in an in-place operation": which parameter it is, where it was made, and the line
that writes to it.

## Why it matters
The step cannot run.

## Example
    self.weight[0] = 0      # in forward()

## Fix
Compute a new tensor (`weight = self.weight * mask`), or write under torch.no_grad() where the value itself is to change.

## Options
None.

## See also
ND504 in-place-overwrite
""",
    ),
    Rule(
        code="ND512",
        name="gradient-shape",
        severity="critical",
        summary="a custom backward returns a gradient that does not fit its input",
        check=_gradient_shape,
        doc="""\
## What it checks
The gradients that custom autograd functions return, before autograd looks at them: their shape and dtype against those of the
inputs they belong to.

## Why it matters
A shape that cannot be summed down to the input's raises; one that can is summed without a word, and the parameters before it
learn from a wrong gradient. The same goes for a dtype that is cast.

## Example
    return grad_output * weight      # for an input of shape (1, d) that was broadcast to (n, d)

## Fix
Return a gradient of the shape and dtype of each input: `(grad_output * weight).sum(0, keepdim=True)`.

## Options
None.

## See also
ND501 cut-graph
""",
    ),
)
