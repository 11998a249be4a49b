"""The line that gives an optimizer's learning rate its value, where the call only names it."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from nanodoc.trace.files import line_span
from nanodoc.trace.rate_names import rate_named_at

_CASES = {
    "an argument of what a trainer is made of": """
        arguments = TrainingArguments(
            weight_decay=10.0,
            learning_rate=10.0,  # here
        )
        trainer = Trainer(args=arguments)
        trainer.train()  # made
        """,
    "a name of the module": """
        lr = 10.0  # here
        def train(model):
            return SGD(model.parameters(), lr=lr)
        """,
    "a name of the function, computed": """
        lr = 1.0
        def train(model, batch):
            base = 0.1
            lr = base * batch  # here
            return SGD(model.parameters(), lr)
        """,
    "names of names": """
        RATE = 5.0  # here
        def train(model):
            rate = RATE
            return SGD(model.parameters(), lr=rate)
        """,
    "an option of the command line": """
        parser.add_argument("--wd", type=float, default=10.0)
        parser.add_argument("--lr", type=float, default=10.0)  # here
        args = parser.parse_args()
        opt = SGD(model.parameters(), lr=args.lr)
        """,
    "an option that the command line has set": """
        parser.add_argument("--lr", type=float, default=0.1)
        args = parser.parse_args()
        opt = SGD(model.parameters(), lr=args.lr)
        """,
    "an option with a longer name": """
        parser.add_argument("--learning-rate", type=float, default=10.0)  # here
        opt = SGD(model.parameters(), lr=parser.parse_args().learning_rate)
        """,
    "an option that is scaled": """
        parser.add_argument("--lr", type=float, default=1.0)
        args = parser.parse_args()
        args.lr = args.lr * 10  # here
        opt = SGD(model.parameters(), lr=args.lr)
        """,
    "an option that is scaled in place": """
        config = {"lr": 1.0}
        config["lr"] *= 10  # here
        opt = SGD(model.parameters(), lr=config["lr"])
        """,
    "a field of a class": """
        class Config:
            decay: float = 10.0
            rate: float = 10.0  # here
        opt = SGD(model.parameters(), lr=Config().rate)
        """,
    "an entry of a dictionary": """
        config = {"steps": 10, "lr": 10.0}  # here
        opt = SGD(model.parameters(), lr=config["lr"])
        """,
    "an argument of a module's constructor": """
        class Net(Module):
            def __init__(self, lr):
                self.lr = lr
            def configure_optimizers(self):
                return SGD(self.parameters(), lr=self.lr)
        net = Net(lr=10.0)  # here
        """,
    "a number in the call": """
        opt = SGD(model.parameters(), lr=10.0)
        """,
    "a product in the call": """
        lr = 1.0
        opt = SGD(model.parameters(), lr=10 * lr)
        """,
    "a parameter of the function": """
        lr = 1.0
        def train(model, lr=10.0):
            return SGD(model.parameters(), lr=lr)
        """,
    "one of two lines": """
        lr = 1.0
        if big:
            lr = 10.0
        opt = SGD(model.parameters(), lr=lr)
        """,
    "a name that is changed": """
        lr = 1.0
        lr *= 10
        opt = SGD(model.parameters(), lr=lr)
        """,
    "a part of a tuple": """
        lr, steps = 10.0, 5
        opt = SGD(model.parameters(), lr=lr)
        """,
    "a name that several loops bind": """
        for lr in (10.0, 1.0):
            opt = SGD(model.parameters(), lr=lr)
        """,
    "a name of another function inside": """
        lr = 10.0  # here
        def train(model):
            def warm():
                lr = 1.0
            return SGD(model.parameters(), lr=lr)
        """,
    "groups with rates of their own": """
        lr = 10.0
        opt = SGD([{"params": model.parameters(), "lr": 1.0}], lr=lr)
        """,
    "a function that makes an optimizer": """
        config = load()
        opt = make_SGD(model, config)
        """,
    "no rate at all": """
        opt = SGD(model.parameters())
        """,
}


@pytest.mark.parametrize("name", _CASES)
def test_the_line_of_a_rate(name: str, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(textwrap.dedent(_CASES[name]))
    lines = file.read_text().splitlines()
    call = next(
        number for number, line in enumerate(lines, 1) if "SGD(" in line or "# made" in line
    )
    made = line_span(str(file), call, "<module>")
    text = lines[call - 1]
    column = text.find("SGD(") + 1 - 5 * ("make_SGD" in text) if "SGD(" in text else 1
    made = type(made)(**{**{n: getattr(made, n) for n in made.__slots__}, "column": column})
    wanted = next((number for number, line in enumerate(lines, 1) if "# here" in line), None)
    found = rate_named_at(made, "SGD", 10.0)
    assert (found.line if found is not None else None) == wanted
