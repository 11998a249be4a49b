"""transformers.Trainer on a small BERT: sentences in two classes, padded, with an evaluation."""

import torch
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainingArguments,
    set_seed,
)


class Sentences(Dataset):
    """Of the second class are the sentences that hold token 5 more often than token 6."""

    def __init__(self, count, length=24, vocabulary=50):
        self.tokens = torch.randint(5, vocabulary, (count, length))
        self.tokens[torch.rand(count, length) < 0.2] = 5
        self.tokens[torch.rand(count, length) < 0.2] = 6
        self.lengths = torch.randint(12, length + 1, (count,))
        kept = torch.arange(length) < self.lengths[:, None]
        self.tokens[~kept] = 0
        self.mask = kept.long()
        fives, sixes = ((self.tokens == token).sum(1) for token in (5, 6))
        self.labels = (fives > sixes).long()

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return {
            "input_ids": self.tokens[index],
            "attention_mask": self.mask[index],
            "labels": self.labels[index],
        }


def accuracy(predicted):
    return {"accuracy": float((predicted.predictions.argmax(-1) == predicted.label_ids).mean())}


def main():
    set_seed(0)
    config = BertConfig(
        vocab_size=50,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=128,
        max_position_embeddings=32,
        num_labels=2,
    )
    model = BertForSequenceClassification(config)
    arguments = TrainingArguments(
        output_dir="out",
        num_train_epochs=1,
        per_device_train_batch_size=16,
        learning_rate=5e-4,
        warmup_steps=4,
        eval_strategy="epoch",
        logging_steps=8,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        seed=0,
    )
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=Sentences(512),
        eval_dataset=Sentences(64),
        compute_metrics=accuracy,
    )
    trainer.train()


if __name__ == "__main__":
    main()
