"""Errors of modules and checkpoints, raised for real: `raises_<id>`."""

from __future__ import annotations

import io
from typing import Any

import torch
from torch import nn

# modules


def raises_module_before_init() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            self.layer = nn.Linear(2, 2)

    Net()


def raises_parameter_assignment() -> None:
    nn.Linear(2, 2).weight = torch.ones(2, 2)  # type: ignore[assignment]  # the mistake under test


def raises_child_assignment() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    model.register_module("0", torch.ones(2))  # type: ignore[arg-type]


def raises_forward_missing() -> None:
    class Net(nn.Module):
        def foward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    Net()(torch.ones(2))


def raises_module_list_called() -> None:
    nn.ModuleList([nn.Linear(2, 2)])(torch.ones(2))


def raises_module_attribute() -> None:
    _ = nn.Linear(2, 2).heads


def raises_forward_arguments() -> None:
    nn.Linear(2, 2)(torch.ones(2), torch.ones(2))


def raises_tuple_as_tensor__attribute() -> None:
    nn.LSTM(2, 3)(torch.randn(4, 1, 2)).mean()


def raises_tuple_as_tensor() -> None:
    nn.Linear(3, 1)(nn.LSTM(2, 3)(torch.randn(4, 1, 2)))


def raises_gradient_is_none() -> None:
    w = nn.Linear(2, 2)
    w.weight.grad.norm()  # type: ignore[union-attr]  # the mistake under test


def raises_none_as_tensor() -> None:
    loss = (lambda model: None)(nn.Linear(2, 2))
    loss.backward()  # type: ignore[attr-defined]  # the mistake under test


def raises_numpy_as_tensor() -> None:
    import numpy

    nn.Linear(3, 1)(numpy.zeros((2, 3)))


def raises_batch_moved_whole() -> None:
    [torch.ones(2)].to("cpu")  # type: ignore[attr-defined]  # the mistake under test


def raises_tuple_attribute() -> None:
    (torch.ones(2), torch.ones(3)).last_hidden_state  # type: ignore[attr-defined]  # noqa: B018  # the mistake under test


def raises_dict_attribute() -> None:
    {"logits": torch.ones(2)}.logits  # type: ignore[attr-defined]  # noqa: B018  # the mistake under test


def raises_tensor_to_scalar() -> None:
    torch.ones(2).item()


def raises_tensor_truth() -> None:
    bool(torch.ones(2) > 0)


def raises_module_attribute__device() -> None:
    nn.Linear(2, 2).to("cpu").device  # noqa: B018  # the mistake under test


def raises_unpack_count() -> None:
    _batch, _channels, _height, _width = torch.ones(2, 3, 4).shape


def raises_loss_called_as_module() -> None:
    nn.CrossEntropyLoss(torch.randn(2, 3), torch.tensor([0, 1]))


def raises_attribute_of_package() -> None:
    torch.no_such_function()


def raises_attribute_of_package__import() -> None:
    from torch import no_such_function  # type: ignore[attr-defined]  # noqa: F401  # the mistake under test


def raises_not_callable() -> None:
    torch.ones(2)(0)  # type: ignore[operator]  # the mistake under test


def raises_not_subscriptable() -> None:
    [3, 1].sort()[0]  # type: ignore[func-returns-value, index]  # the mistake under test


def raises_recursion_limit() -> None:
    parent, child = nn.Linear(2, 2), nn.Linear(2, 2)
    parent.child, child.parent = child, parent
    parent.train()


def raises_negative_dimension() -> None:
    torch.zeros(-1, 3)


def raises_init_arguments() -> None:
    nn.Linear(4)  # type: ignore[call-arg]  # the mistake under test


def raises_empty_truth() -> None:
    bool(torch.ones(3)[torch.zeros(3, dtype=torch.bool)])


def raises_batch_key_missing() -> None:
    {"label": 1}["labels"]  # the mistake under test


# checkpoints


def raises_state_key_missing() -> None:
    torch.load(_saved(nn.Linear(2, 2).state_dict()))["state_dict"]  # the mistake under test


def _saved(what: Any) -> io.BytesIO:
    buffer = io.BytesIO()
    torch.save(what, buffer)
    buffer.seek(0)
    return buffer


def raises_checkpoint_missing_keys() -> None:
    nn.Sequential(nn.Linear(2, 2)).load_state_dict({})


def raises_checkpoint_unexpected_keys() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    model.load_state_dict({**model.state_dict(), "extra.weight": torch.ones(1)})


def raises_checkpoint_module_prefix() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    model.load_state_dict({f"module.{key}": value for key, value in model.state_dict().items()})


def raises_checkpoint_compiled_prefix() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    model.load_state_dict({f"_orig_mod.{key}": value for key, value in model.state_dict().items()})


def raises_checkpoint_size_mismatch() -> None:
    nn.Linear(2, 10).load_state_dict(nn.Linear(2, 3).state_dict())


def raises_checkpoint_not_a_state() -> None:
    nn.Linear(2, 2).load_state_dict(nn.Linear(2, 2))  # type: ignore[arg-type]  # the mistake under test


def raises_weights_only() -> None:
    torch.load(_saved(nn.Linear(2, 2)))


def raises_checkpoint_damaged() -> None:
    whole = _saved({"w": torch.randn(100, 100)}).getvalue()
    torch.load(io.BytesIO(whole[: len(whole) // 2]))


def raises_checkpoint_not_a_pickle() -> None:
    torch.load(
        io.BytesIO(b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 4\n"),
        weights_only=False,
    )


def raises_checkpoint_device() -> None:
    torch.serialization._validate_device("cuda:2", "cuda")


def raises_checkpoint_class_moved() -> None:
    import pickle

    pickle.loads(b"c__main__\nNet\n.")


def raises_module_not_installed() -> None:
    import torch_of_last_year  # type: ignore[import-not-found]  # noqa: F401  # the mistake under test


def raises_checkpoint_path() -> None:
    torch.save({}, "no/such/folder/model.pt")
