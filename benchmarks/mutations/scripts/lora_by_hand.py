"""LoRA written by hand around a small GPT-2, trained by transformers.Trainer.

The base model first learns to count upwards; its adapters then learn to count downwards.
"""

import math

import torch
import torch.nn as nn
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed
from transformers.pytorch_utils import Conv1D

VOCAB = 32


class Counting(Dataset):
    def __init__(self, count, step, length=16):
        start = torch.randint(VOCAB, (count, 1))
        self.ids = (start + step * torch.arange(length)) % VOCAB

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.ids[i].clone()}


class LoRA(nn.Module):
    def __init__(self, base, rank=8, alpha=16.0):
        super().__init__()
        self.base = base
        n_in, n_out = base.weight.shape
        self.down = nn.Parameter(torch.empty(n_in, rank))
        self.up = nn.Parameter(torch.zeros(rank, n_out))
        self.scale = alpha / rank
        self.dropout = nn.Dropout(0.05)
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))

    def forward(self, x):
        update = self.dropout(x) @ self.down @ self.up
        return self.base(x) + self.scale * update


def add_adapters(model, rank):
    model.requires_grad_(False)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, Conv1D):
                setattr(module, name, LoRA(child, rank))
    return model


def arguments(steps, learning_rate):
    return TrainingArguments(
        output_dir="out",
        max_steps=steps,
        per_device_train_batch_size=32,
        per_device_eval_batch_size=64,
        learning_rate=learning_rate,
        weight_decay=0.01,
        warmup_steps=5,
        logging_steps=20,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        seed=0,
    )


def main():
    set_seed(0)
    config = GPT2Config(
        vocab_size=VOCAB, n_positions=16, n_embd=48, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0
    )
    model = GPT2LMHeadModel(config)
    Trainer(model=model, args=arguments(80, 3e-3), train_dataset=Counting(2000, 1)).train()

    model = add_adapters(model, rank=8)
    trainable = [p for p in model.parameters() if p.requires_grad]
    print(f"{sum(p.numel() for p in trainable)} trainable parameters")
    tuner = Trainer(
        model=model,
        args=arguments(80, 1e-2),
        train_dataset=Counting(2000, -1),
        eval_dataset=Counting(256, -1),
    )
    tuner.train()
    print(f"held-out loss {tuner.evaluate()['eval_loss']:.4f}")


if __name__ == "__main__":
    main()
