"""Each operator of `scripts/mutate` edits a small snippet in place."""

from __future__ import annotations

import ast

import pytest

from benchmarks.mutations.judge import causes
from benchmarks.mutations.operators import KINDS, OPERATORS
from benchmarks.mutations.source import Source

_INIT = "class Net:\n    def __init__(self):\n        {}\n"
_FORWARD = "class Net:\n    def forward(self, x, y):\n        {}\n        return x\n"
_LOOP = "for x, y in loader:\n    {}\n"
_SGD = "torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)"

# operator, source, the text that becomes another one, that other one
TABLE = [
    ("labels-of-another-sample", "loss = F.mse_loss(out, y)", "y)", "y.roll(1, 0))"),
    ("inputs-of-another-sample", "out = model(x, 2)", "x,", "x.roll(1, 0),"),
    ("targets-not-shifted", "y = tokens[:, 1:]", "1:", ":-1"),
    ("targets-not-shifted", "y = data[i + 1:i + 1 + n]", "i + 1:i + 1 + n", "i:i + n"),
    ("mask-inverted", "loss = (error * mask).sum()", "mask", "(mask == 0)"),
    ("mask-dropped", "loss = (error * mask).sum()", "error * mask", "error"),
    ("mask-dropped", "s = s.masked_fill(causal, -1e9)", "s.masked_fill(causal, -1e9)", "s"),
    ("inputs-flipped", "out = self.model(x[:, 1])", "x[:, 1]", "x[:, 1].flip(-1)"),
    ("inputs-transposed", "out = model(x)", "x)", "x.transpose(-1, -2))"),
    ("normalised-twice", "x = (x - mean) / std", "(x - mean) / std", "((x - mean) / std - mean) / std"),
    ("never-normalised", "x = (x - mean) / std", "(x - mean) / std", "x"),
    ("never-normalised", "x = x.float() / 255", "x.float() / 255", "x.float()"),
    ("never-shuffled", "loader = DataLoader(data, shuffle=True)", "True", "False"),
    ("never-shuffled", "order = torch.randperm(n)", "randperm", "arange"),
    ("always-the-same-samples", "idx = torch.randint(9, (n,))", "torch.randint(9, (n,))", "torch.arange(n)"),
    ("softmax-over-another-axis", "p = F.softmax(s, dim=-1)", "-1", "0"),
    ("softmax-over-another-axis", "p = s.softmax(1)", "1", "0"),
    ("mean-over-another-axis", "m = x.mean(1)", "1", "0"),
    ("joined-along-another-axis", "x = torch.cat([a, b], dim=1)", "dim=1", "dim=0"),
    ("reshape-for-permute", "x = x.transpose(1, 2)", "x.transpose(1, 2)", "x.reshape(x.transpose(1, 2).shape)"),
    ("batch-for-time", "self.rnn = nn.GRU(3, 4, batch_first=True)", "True", "False"),
    ("squeeze-dropped", "v = self.v(h).squeeze(-1)", ".squeeze(-1)", ""),
    ("squeeze-dropped", "v = out[:, 0]", "0]", ":1]"),
    ("unsqueeze-dropped", "a = a.unsqueeze(1)", ".unsqueeze(1)", ""),
    ("unsqueeze-dropped", "a = a[:, None]", "a[:, None]", "a"),
    ("keepdim-dropped", "m = x.mean(1, keepdim=True)", "True", "False"),
    ("first-for-last", "last = out[:, -1]", "-1", "0"),
    ("flattened-in-another-order", "x = x.flatten(1)", "x.flatten(1)", "x.transpose(0, 1).reshape(x.flatten(1).shape)"),
    ("sign-flipped", "loss = a + b", "+", "-"),
    ("sign-flipped", "loss = -gain.mean()", "-gain", "gain"),
    ("whole-loss-negated", "loss = F.mse_loss(out, y)", "F.mse", "-F.mse"),
    ("term-dropped", "loss = a + 0.1 * b", "a + 0.1 * b", "a"),
    ("sum-for-mean", "loss = error.mean()", "mean", "sum"),
    ("sum-for-mean", "loss = F.mse_loss(out, y)", "y)", 'y, reduction="sum")'),
    ("weight-times-1000", "loss = a + b", "a +", "1000 * a +"),
    ("arguments-swapped", "loss = criterion(out, y)", "out, y", "y, out"),
    ("compared-with-itself", "loss = F.mse_loss(out, y)", "y)", "out.detach())"),
    ("softmax-before-cross-entropy", "loss = F.cross_entropy(out, y)", "out,", "out.softmax(1),"),
    ("target-of-another-scale", "loss = F.mse_loss(out, y)", "y)", "100 * y)"),
    ("loss-of-the-first-sample", "loss = F.mse_loss(out, y)", "out, y", "out[:1], y[:1]"),
    ("features-detached", _FORWARD.format("x = self.fc(x)"), "self.fc(x)", "self.fc(x).detach()"),
    ("prediction-detached", "loss = F.mse_loss(out, y)", "out,", "out.detach(),"),
    ("layer-under-no-grad", _FORWARD.format("x = self.fc(x)"), "x = self", "with torch.no_grad(): x = self"),
    ("data-of-a-tensor", _FORWARD.format("x = self.fc(y)"), "(y)", "(y.data)"),
    ("tensor-rebuilt-from-values", _FORWARD.format("x = self.fc(x)"), "self.fc(x)", "torch.tensor(self.fc(x).tolist())"),
    ("detach-dropped", "judged = critic(fake.detach())", "fake.detach()", "fake"),
    ("term-detached", "loss = a + b", "a +", "a.detach() +"),
    ("backward-twice", "loss.backward()", "loss.backward()", "loss.backward(); loss.backward()"),
    ("stepped-before-backward", "loss.backward()\nopt.step()", "loss.backward()\nopt.step()", "opt.step()\nloss.backward()"),
    ("parameters-left-out", f"opt = {_SGD}", "net.parameters()", "list(net.parameters())[-2:]"),
    ("parameters-of-another-network", "a = Adam(f.parameters())\nb = Adam(g.parameters())", "Adam(f.", "Adam(g."),
    ("never-cleared", _LOOP.format("opt.zero_grad()"), "opt.zero_grad()", "pass"),
    ("cleared-before-the-step", "opt.step()", "opt.step()", "opt.zero_grad(); opt.step()"),
    ("never-stepped", _LOOP.format("opt.step()"), "opt.step()", "pass"),
    ("clipped-after-the-step", "clip_grad_norm_(p, 1)\nopt.step()", "clip_grad_norm_(p, 1)\nopt.step()", "opt.step()\nclip_grad_norm_(p, 1)"),
    ("clipped-to-nothing", "clip_grad_norm_(p, 1.0)", "1.0", "1e-5 * (1.0)"),
    ("schedule-per-batch", "for e in es:\n    for b in bs:\n        opt.step()\n    sched.step()", "opt.step()\n    sched.step()", "opt.step(); sched.step()\n    pass"),
    ("schedule-of-another-length", "s = CosineAnnealingLR(opt, T_max=n)", "T_max=n", "T_max=max(1, n // 10)"),
    ("rate-times-100", f"opt = {_SGD}", "lr=0.1", "lr=100 * (0.1)"),
    ("rate-by-1000", f"opt = {_SGD}", "lr=0.1", "lr=(0.1) / 1000"),
    ("decay-times-1000", f"opt = {_SGD}", "1e-4", "1000 * (1e-4)"),
    ("betas-swapped", "opt = Adam(net.parameters(), lr=1)", "lr=1", "lr=1, betas=(0.999, 0.5)"),
    ("momentum-of-one", f"opt = {_SGD}", "0.9", "1.0"),
    ("average-never-moved", "def up():\n    target_p.copy_(p)", "target_p.copy_(p)", "pass"),
    ("average-moves-at-once", "a.lerp_(b, 0.1)", "0.1", "1.0"),
    ("end-of-episode-ignored", "alive = 1 - dones[t]", "1 - dones[t]", "1.0"),
    ("end-of-episode-shifted", "alive = 1 - dones[t]", "[t]", "[t - 1]"),
    ("accumulation-not-divided", "loss = loss / accumulation", "loss / accumulation", "loss"),
    ("optimizer-state-lost", "opt.step()", "opt.step()", "opt.state.clear(); opt.step()"),
    ("first-weights-times-30", _INIT.format("self.a = nn.Linear(1, 2)"), "2)", "2); self.a.weight.data.mul_(30.0)"),
    ("first-weights-zero", _INIT.format("self.a = nn.Linear(1, 2)"), "2)", "2); self.a.weight.data.zero_()"),
    ("norm-dropped", _INIT.format("self.n = nn.LayerNorm(4)"), "nn.LayerNorm(4)", "nn.Identity()"),
    ("activation-dropped", "x = F.relu(x)", "F.relu(x)", "x"),
    ("trained-in-eval-mode", "model.train()", "train", "eval"),
    ("dropout-of-0.9", "d = nn.Dropout(0.1)", "0.1", "0.9"),
    ("one-module-repeated", "m = [Block() for _ in range(n)]", "[Block() for _ in range(n)]", "[Block()] * n"),
    ("positions-of-another-axis", "p = torch.arange(x.size(1))", "size(1)", "size(0)"),
    ("positions-dropped", _FORWARD.format("x = x + self.pos"), "x + self.pos", "x"),
    ("residual-dropped", _FORWARD.format("x = x + self.fc(x)"), "x + self.fc(x)", "self.fc(x)"),
    ("layer-frozen", _INIT.format("self.a = nn.Linear(1, 2)"), "2)", "2); self.a.requires_grad_(False)"),
    ("layer-used-twice", _FORWARD.format("x = self.fc2(self.fc1(x))"), "fc2", "fc1"),
    ("epsilon-dropped", "x = a / (b + 1e-8)", "(b + 1e-8)", "(b)"),
    ("epsilon-dropped", "x = a / b.clamp(min=1e-6)", ".clamp(min=1e-6)", ""),
    ("variance-as-a-difference", "v = x.var(0)", "x.var(0)", "(x.pow(2).mean(0) - x.mean(0).pow(2))"),
    ("half-precision", "r = d.exp()", "d.exp()", "d.half().exp().float()"),
    ("log-of-softmax-by-hand", "p = x.log_softmax(1)", "x.log_softmax(1)", "(x.exp() / x.exp().sum(1, keepdim=True)).log()"),
    ("logsumexp-by-hand", "z = x.logsumexp(1)", "x.logsumexp(1)", "x.exp().sum(1).log()"),
    ("root-at-zero", "d = (s + 1e-8).sqrt()", "(s + 1e-8)", "(s)"),
    ("probability-not-clamped", "p = F.logsigmoid(d)", "F.logsigmoid(d)", "d.sigmoid().log()"),
    ("exponent-not-halved", "s = (0.5 * logvar).exp()", "0.5 * logvar", "8 * logvar"),
]  # fmt: skip
QUIET = [
    ("no-grad-dropped", "with torch.no_grad():\n    y = net(x)", "torch.no_grad()", "torch.enable_grad()"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "source", "before", "after"),
    [*TABLE, *QUIET],
    ids=[f"{row[0]} {at}" for at, row in enumerate([*TABLE, *QUIET])],
)
def test_an_operator_edits_in_place(name: str, source: str, before: str, after: str) -> None:
    found = list(OPERATORS[name].find(Source(source)))
    wanted = source.replace(before, after, 1)
    assert wanted in [mutation.text for mutation in found]
    for mutation in found:
        ast.parse(mutation.text)
        assert mutation.text.count("\n") == source.count("\n")
        assert mutation.line in mutation.right


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_without_a_site_gives_nothing(name: str) -> None:
    assert list(OPERATORS[name].find(Source("total = first\n"))) == []


def test_every_operator_is_tried_and_has_a_cause() -> None:
    assert {row[0] for row in [*TABLE, *QUIET]} == set(OPERATORS) == set(causes())
    assert {operator.kind for operator in OPERATORS.values()} == set(KINDS)


def test_line_numbers_stay_where_a_node_has_several_lines() -> None:
    source = Source("loss = F.mse_loss(\n    out,\n    y,\n)\nopt.zero_grad(\n)\nlast = 1\n")
    (negated,) = OPERATORS["whole-loss-negated"].find(source)
    (removed,) = OPERATORS["never-cleared"].find(source)
    for mutation in (negated, removed):
        assert mutation.text.splitlines()[6] == "last = 1"
    assert negated.right == {1, 2, 3, 4}
    assert removed.right >= {4, 5, 6, 7}  # and the statements before and after


@pytest.mark.parametrize(
    "source",
    [
        "def evaluate():\n    loss = F.mse_loss(out, y)",
        "with torch.no_grad():\n    loss = F.mse_loss(out, y)",
        "@torch.no_grad()\ndef check():\n    loss = F.mse_loss(out, y)",
        "net.eval()\nloss = F.mse_loss(out, y)",
        "test_loss = F.mse_loss(out, y)",
        "print(F.mse_loss(out, y))",
        "loss = F.mse_loss(out, y)  # the held-out one",
    ],
)
def test_the_measure_is_never_mutated(source: str) -> None:
    assert not list(OPERATORS["whole-loss-negated"].find(Source(source, ["held-out"])))


def test_training_behind_a_teacher_in_eval_mode_is_mutated() -> None:
    source = Source("teacher.eval()\nloss = F.mse_loss(out, y)\nloss.backward()")
    assert len(list(OPERATORS["whole-loss-negated"].find(source))) == 1
