"""Errors of checkpoints, compilation, frameworks and files, raised for real: `raises_<id>`."""

from __future__ import annotations

import importlib
import io
import json
import pickle
import sys
from collections import OrderedDict
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import numpy
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load
from torch import nn
from torch.utils.data import default_collate


class Net(nn.Module):
    """A model with one named layer."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)


# checkpoints


def raises_checkpoint_other_prefix() -> None:
    Net().load_state_dict({f"model.{key}": value for key, value in Net().state_dict().items()})


def raises_checkpoint_other_prefix__of_the_model() -> None:
    nn.ModuleDict({"net": Net()}).load_state_dict(Net().state_dict())


def raises_checkpoint_of_shards() -> None:
    Net().load_state_dict({"fc.weight": torch.empty(0), "fc.bias": torch.zeros(2)})


def raises_checkpoint_into_shards() -> None:
    net = Net()
    net.fc.weight.data = torch.empty(0)
    net.load_state_dict(Net().state_dict())


def raises_checkpoint_vocabulary() -> None:
    model = nn.ModuleDict({"embed_tokens": nn.Embedding(100, 2)})
    model.load_state_dict({"embed_tokens.weight": torch.zeros(101, 2)})


def raises_checkpoint_is_a_pointer() -> None:
    load(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")


def raises_checkpoint_is_a_page() -> None:
    pickle.loads(b"<!DOCTYPE html>")


def raises_checkpoint_empty() -> None:
    torch.load(io.BytesIO(b""), weights_only=False)


def raises_tensors_share_memory() -> None:
    x = torch.zeros(2)
    with TemporaryDirectory() as folder:
        from safetensors.torch import save_file

        save_file({"a": x, "b": x}, Path(folder) / "x.safetensors")


def raises_state_used_as_model() -> None:
    OrderedDict().eval()  # type: ignore[attr-defined]


def raises_weights_file_missing() -> None:
    import transformers

    with TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps({"model_type": "bert"}))
        transformers.BertModel.from_pretrained(folder)


# compilation


def raises_dynamo_data_dependent_branch() -> None:
    torch.compile(lambda x: x if x.sum() > 0 else -x, backend="eager", fullgraph=True)(
        torch.randn(2)
    )


def raises_dynamo_builtin() -> None:
    torch.compile(lambda x: [x, print("x", x)], backend="eager", fullgraph=True)(torch.randn(2))


def raises_data_dependent_guard() -> None:
    class Sized(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.new_ones(1) if x.item() == 0 else x.new_zeros(1)

    torch.export.export(Sized(), (torch.tensor(3),), strict=False)


# data


def raises_collate_type_object() -> None:
    default_collate([Image.new("RGB", (2, 2)), Image.new("RGB", (2, 2))])


def raises_text_as_tensor() -> None:
    torch.tensor(["cat", "dog"])


# frameworks, numerics and files


def raises_output_without_loss() -> None:
    from transformers.modeling_outputs import SequenceClassifierOutput

    SequenceClassifierOutput(logits=torch.zeros(1)).backward()


def raises_output_as_input() -> None:
    F.cross_entropy(OrderedDict(out=torch.zeros(1)), torch.tensor([0]))  # type: ignore[arg-type]


def raises_target_is_none() -> None:
    F.cross_entropy(torch.randn(2, 3), None)  # type: ignore[arg-type]


def raises_invalid_arguments_of_layer() -> None:
    nn.Conv2d(1, 1, 1)((torch.randn(1, 1, 2, 2),))


def raises_scheduler_verbose() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))])
    torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, verbose=True)  # type: ignore[call-arg]


def raises_nesterov_momentum() -> None:
    torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1, nesterov=True)


def raises_metric_of_scores() -> None:
    from sklearn.metrics import accuracy_score

    accuracy_score([0, 1, 2], numpy.random.rand(3, 3))


def raises_lengths_differ() -> None:
    from sklearn.metrics import accuracy_score

    accuracy_score([0, 1, 2], [0, 1])


def raises_nan_cost_matrix() -> None:
    from scipy.optimize import linear_sum_assignment

    linear_sum_assignment(numpy.full((2, 2), numpy.nan))


def raises_wrong_json() -> None:
    json.loads("")


def raises_interrupted() -> None:
    raise KeyboardInterrupt


def raises_module_removed_from_torch() -> None:
    import torch._six  # type: ignore[import-not-found]  # noqa: F401  # the mistake under test


def raises_file_shadows_package() -> None:
    from types import ModuleType

    module = ModuleType("torch")
    module.__spec__ = SimpleNamespace(
        _initializing=True, name="torch", origin=None, has_location=False
    )  # type: ignore[assignment]
    assert "torch" in sys.modules
    module.nn  # noqa: B018  # to ask for it is the mistake under test


def raises_cpu_out_of_memory_absurd() -> None:
    torch.empty(2**60)


def raises_circular_import() -> None:
    with TemporaryDirectory() as folder:
        (Path(folder) / "half_of_a_circle.py").write_text("import rest_of_a_circle\nname = 1\n")
        (Path(folder) / "rest_of_a_circle.py").write_text("from half_of_a_circle import name\n")
        sys.path.insert(0, folder)
        try:
            importlib.import_module("half_of_a_circle")
        finally:
            sys.path.remove(folder)
