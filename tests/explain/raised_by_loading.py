"""Errors of data loading, processes, distributions over processes and frameworks, raised for real:
`raises_<id>`."""

from __future__ import annotations

import io
import multiprocessing
import os
import pickle
import resource
import signal
import socket
import time
from datetime import timedelta
from typing import Any

import numpy
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler, TensorDataset, random_split


class Rows(Dataset[Any]):
    """A data set that gives what it was given, or raises it."""

    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        if isinstance(self.rows[index], Exception):
            raise self.rows[index]
        return self.rows[index]


# data loading


def raises_collate_type() -> None:
    next(iter(DataLoader(Rows([None, None]), batch_size=2)))


def raises_collate_ragged() -> None:
    next(iter(DataLoader(Rows([torch.ones(3), torch.ones(4)]), batch_size=2)))


def raises_collate_ragged_lists() -> None:
    next(iter(DataLoader(Rows([[1, 2], [1]]), batch_size=2)))


def raises_collate_resize() -> None:
    out = torch.empty(0)
    numbers = numpy.zeros(4, dtype=numpy.float32)
    torch.from_numpy(numbers).resize_(40)
    del out


def raises_loader_worker_exception() -> None:
    list(DataLoader(Rows([ValueError("row 0 holds no image")]), num_workers=1))


class Dying(Rows):
    """A data set whose worker process dies, or sleeps, on its first row."""

    def __getitem__(self, index: int) -> Any:
        if self.rows[0] == "sleep":
            time.sleep(2)
        if self.rows[0] == "exit":
            os._exit(3)
        os.kill(os.getpid(), self.rows[0])


def raises_loader_worker_killed() -> None:
    list(DataLoader(Dying([signal.SIGKILL]), num_workers=1))


def raises_loader_worker_crashed() -> None:
    list(DataLoader(Dying([signal.SIGSEGV]), num_workers=1))


def raises_loader_worker_shared_memory() -> None:
    list(DataLoader(Dying([signal.SIGBUS]), num_workers=1))


def raises_loader_worker_exited() -> None:
    list(DataLoader(Dying(["exit"]), num_workers=1))


def raises_loader_timeout() -> None:
    list(DataLoader(Dying(["sleep"]), num_workers=1, timeout=1))


def raises_broken_pipe() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        os.write(writing, b"batch")
    finally:
        os.close(writing)


def raises_disk_full() -> None:
    with open("/dev/full", "w") as file:
        file.write("weights")
        file.flush()


def raises_too_many_open_files() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 2, limits[1]))
    held = []
    try:
        while True:
            held.append(open(os.devnull))  # noqa: SIM115  # left open is the mistake under test
    finally:
        for file in held:
            file.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def raises_main_not_guarded() -> None:
    process: Any = multiprocessing.current_process()
    process._inheriting = True  # as in a child that imports the main module again
    try:
        multiprocessing.get_context("spawn").Process(target=print).start()
    finally:
        del process._inheriting


def raises_image_file_broken() -> None:
    image = pytest.importorskip("PIL.Image")
    image.open(io.BytesIO(b"no image"))


def raises_empty_data_set() -> None:
    DataLoader(Rows([]), shuffle=True)


def raises_loader_options() -> None:
    DataLoader(Rows([1]), shuffle=True, sampler=RandomSampler(Rows([1])))


def raises_loader_needs_workers() -> None:
    DataLoader(Rows([1]), prefetch_factor=4)


def raises_data_set_without_length() -> None:
    class Stream(torch.utils.data.IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter([1])

    len(DataLoader(Stream()))


def raises_data_set_without_getitem() -> None:
    class Empty(Dataset[int]):
        def __len__(self) -> int:
            return 1

    Empty()[0]


def raises_split_lengths() -> None:
    random_split(Rows([1, 2, 3]), [1, 1])


def raises_tensor_data_set_sizes() -> None:
    TensorDataset(torch.ones(3), torch.ones(4))


def raises_numpy_strides() -> None:
    torch.from_numpy(numpy.zeros((2, 3))[:, ::-1])


def raises_numpy_objects() -> None:
    torch.as_tensor(numpy.array([None, "a"], dtype=object))


def raises_list_to_tensor() -> None:
    torch.tensor([[1, 2], [3]])


def raises_pickle_local() -> None:
    pickle.dumps(lambda sample: sample)


def raises_iterator_ended() -> None:
    loader = iter(DataLoader(Rows([1])))
    next(loader)
    next(loader)


def raises_batch_moved_whole__dict() -> None:
    batch: Any = {"text": ["a"], "x": torch.ones(1)}
    batch.to("cpu")


# distributed


def raises_process_group_missing() -> None:
    dist.barrier()


def raises_rendezvous_address() -> None:
    dist.init_process_group("gloo", rank=0, world_size=1)


def _group() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def raises_process_group_twice() -> None:
    _group()
    try:
        _group()
    finally:
        dist.destroy_process_group()


def raises_unused_in_ddp() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.used(x)

    _group()
    try:
        model = nn.parallel.DistributedDataParallel(Net())
        model(torch.ones(2, 2)).sum().backward()
        model(torch.ones(2, 2)).sum().backward()
    finally:
        dist.destroy_process_group()


def raises_ddp_without_parameters() -> None:
    _group()
    try:
        nn.parallel.DistributedDataParallel(nn.ReLU())
    finally:
        dist.destroy_process_group()


def raises_ddp_attribute() -> None:
    _group()
    try:
        model = nn.parallel.DistributedDataParallel(nn.Linear(2, 2))
        _ = model.weight
    finally:
        dist.destroy_process_group()


def raises_rendezvous_timeout() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    dist.TCPStore("127.0.0.1", port, 2, True, timeout=timedelta(seconds=1))


def raises_address_in_use() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        dist.TCPStore("127.0.0.1", taken.getsockname()[1], 1, True, timeout=timedelta(seconds=1))


def raises_client_timed_out() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    dist.TCPStore("127.0.0.1", port, 2, False, timeout=timedelta(seconds=1))


def raises_nccl_missing() -> None:
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)


# compile


def raises_graph_break() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return -x

    torch.compile(step, fullgraph=True, backend="eager")(torch.ones(2))


def raises_compile_backend_failed() -> None:
    def broken(graph: Any, inputs: Any) -> Any:
        raise RuntimeError("no kernel for this graph")

    torch.compile(lambda x: x + 1, backend=broken)(torch.ones(2))


def raises_compile_backend_unknown() -> None:
    torch.compile(lambda x: x + 1, backend="inductr")


def raises_vmap_control_flow() -> None:
    torch.vmap(lambda x: x if x > 0 else -x)(torch.ones(3))


def raises_vmap_control_flow__item() -> None:
    torch.vmap(lambda x: x.item())(torch.ones(3))


# frameworks


def raises_padding_or_truncation() -> None:
    from transformers import BatchEncoding

    BatchEncoding({"input_ids": [[1, 2], [1]]}, tensor_type="pt")


def raises_inputs_missing() -> None:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        vocab_size=10,
    )
    BertForSequenceClassification(config)()


def raises_attention_heads__transformers() -> None:
    from transformers import BertConfig, BertModel

    BertModel(
        BertConfig(
            hidden_size=10,
            num_hidden_layers=1,
            num_attention_heads=4,
            intermediate_size=8,
            vocab_size=10,
        )
    )


def raises_pad_token_missing() -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    )
    tokenizer(["a", "a a"], padding=True)


def raises_model_not_found() -> None:
    from transformers import AutoConfig

    AutoConfig.from_pretrained("./no-such-folder-of-a-model")


def raises_batch_without_pad_token() -> None:
    from transformers import GPT2Config, GPT2ForSequenceClassification

    model = GPT2ForSequenceClassification(GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=10))
    model(torch.ones(2, 3, dtype=torch.long))


def raises_steps_and_strategies() -> None:
    from transformers import TrainingArguments

    TrainingArguments(output_dir="out", load_best_model_at_end=True, save_strategy="epoch")


def raises_arguments_renamed() -> None:
    from transformers import TrainingArguments

    TrainingArguments(output_dir="out", evaluation_strategy="epoch")


def raises_file_missing() -> None:
    open("data/train.csv")  # noqa: SIM115  # it is not there


def raises_list_index() -> None:
    Rows([1, 2]).rows[5]


def raises_no_terminal() -> None:
    with open(os.devnull) as nothing, pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdin", nothing)
        input()
