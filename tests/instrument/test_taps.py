"""Listening to a function: who is called in which order, and what is put back."""

from __future__ import annotations

import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from nanodoc.instrument import taps
from nanodoc.instrument.frames import is_looked_through


def library() -> Any:
    """A library with a function that notes its calls."""
    module = types.SimpleNamespace(calls=[])

    def function(word: str) -> str:
        """Says it."""
        module.calls.append(word)
        return word

    module.function = function
    return module


def saying(name: str, calls: list[str]) -> Callable[[Any], Any]:
    def listener(original: Any) -> Any:
        def function(word: str) -> Any:
            calls.append(name)
            return original(word)

        return function

    return listener


def test_the_newest_listener_is_called_first() -> None:
    module = library()
    undo = [taps.at(module, "function").listen(saying(n, module.calls)) for n in ("a", "b")]
    assert module.function("x") == "x"
    assert module.calls == ["b", "a", "x"]
    assert module.function.__doc__ == "Says it."
    undo[0]()  # in another order than they came
    module.calls.clear()
    module.function("y")
    assert module.calls == ["b", "y"]
    undo[1]()
    undo[1]()  # twice does nothing


def test_the_original_is_put_back() -> None:
    module = library()
    original = module.function

    def break_off() -> None:
        with taps.listening((taps.at(module, "function"), lambda f: f)):
            assert module.function is not original
            raise KeyError

    with pytest.raises(KeyError):
        break_off()
    assert module.function is original


def test_a_wrapper_of_somebody_else_stays() -> None:
    """It goes on calling ours, which has nobody to tell any more."""
    module = library()
    undo = taps.at(module, "function").listen(saying("ours", module.calls))
    ours = module.function

    def theirs(word: str) -> Any:
        module.calls.append("theirs")
        return ours(word)

    module.function = theirs
    undo()
    assert module.function is theirs
    module.function("x")
    assert module.calls == ["theirs", "x"]
    again = taps.at(module, "function").listen(saying("again", module.calls))
    module.function("y")
    assert module.calls[2:] == ["again", "theirs", "y"]
    again()
    assert module.function is theirs


def test_an_inherited_method_is_inherited_afterwards() -> None:
    class Parent:
        def method(self) -> str:
            return "parent"

    class Child(Parent):
        pass

    with taps.listening((taps.at(Child, "method"), lambda f: lambda self: f(self) + "'s child")):
        assert Child().method() == "parent's child"
        assert Parent().method() == "parent"
    assert "method" not in vars(Child)


def test_what_is_written_in_c_cannot_be_replaced() -> None:
    with pytest.raises(TypeError):
        taps.at(dict, "get").listen(lambda f: f)
    assert {"a": 1}.get("a") == 1


def test_files_of_listeners_are_looked_through(tmp_path: Path) -> None:
    """A listener of another file: those of this one are known after the first test."""
    file = str(tmp_path / "listener.py")
    made: dict[str, Any] = {}
    exec(
        compile("def listener(original):\n    return lambda word: original(word)", file, "exec"),
        made,
    )
    assert not is_looked_through(file)
    with taps.listening((taps.at(library(), "function"), made["listener"])):
        assert is_looked_through(file)


def test_optimizers_tell_before_and_after_their_step() -> None:
    weight = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    told: list[str] = []

    def closure() -> Any:
        told.append("closure")
        loss = weight.sum()
        loss.backward()
        return loss

    def before(optimizer: Any, args: Any, kwargs: Any) -> Any:
        told.append("before")
        return (args[0], closure), kwargs

    with taps.listening(
        (taps.BEFORE_STEP, before), (taps.AFTER_STEP, lambda *_: told.append("after"))
    ):
        optimizer.step()
    assert told == ["before", "closure", "after"]
    optimizer.step()
    assert len(told) == 3
