"""transformers.Trainer on a small GPT-2: next-token prediction of made text."""

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed


class Sequences(Dataset):
    """Each sequence counts upwards from a random token."""

    def __init__(self, count, length=32, vocabulary=64):
        start = torch.randint(vocabulary, (count, 1))
        self.tokens = (start + torch.arange(length)) % vocabulary

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def main():
    set_seed(0)
    config = GPT2Config(
        vocab_size=64,
        n_positions=32,
        n_embd=64,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = GPT2LMHeadModel(config)
    arguments = TrainingArguments(
        output_dir="out",
        max_steps=30,
        per_device_train_batch_size=8,
        learning_rate=1e-3,
        logging_steps=5,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        seed=0,
    )
    Trainer(model=model, args=arguments, train_dataset=Sequences(256)).train()


if __name__ == "__main__":
    main()
