"""Accelerate's loop for a classifier of text: two epochs, accumulation, a scheduler, metrics."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    get_linear_schedule_with_warmup,
)


def pairs(count, length=20, vocabulary=40):
    tokens = torch.randint(5, vocabulary, (count, length))
    labels = torch.arange(count) % 2
    tokens[labels == 1, 10:] = tokens[labels == 1, :10]
    lengths = torch.randint(16, length + 1, (count,))
    return [
        {"input_ids": row[:size], "labels": label}
        for row, label, size in zip(tokens, labels, lengths, strict=True)
    ]


def collate(rows):
    ids = pad_sequence([row["input_ids"] for row in rows], batch_first=True)
    labels = torch.stack([row["labels"] for row in rows])
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": labels}


def main():
    set_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    train = DataLoader(pairs(256), shuffle=True, collate_fn=collate, batch_size=8)
    held_out = DataLoader(pairs(64), collate_fn=collate, batch_size=32)
    config = BertConfig(
        vocab_size=40,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=128,
        max_position_embeddings=32,
        num_labels=2,
    )
    model = BertForSequenceClassification(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    scheduler = get_linear_schedule_with_warmup(optimizer, 8, len(train) * 2 // 2)
    model, optimizer, train, held_out, scheduler = accelerator.prepare(
        model, optimizer, train, held_out, scheduler
    )
    for epoch in range(2):
        model.train()
        for batch in train:
            with accelerator.accumulate(model):
                outputs = model(**batch)
                loss = outputs.loss
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        model.eval()
        right = 0
        for batch in held_out:
            with torch.no_grad():
                outputs = model(**batch)
            predicted, labels = accelerator.gather_for_metrics(
                (outputs.logits.argmax(-1), batch["labels"])
            )
            right += int((predicted == labels).sum())
        accelerator.print(f"epoch {epoch}: {right} of 64 right")


if __name__ == "__main__":
    main()
