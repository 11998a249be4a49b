"""TRL's SFTTrainer on a small GPT-2, with prompts and completions of made words."""

import random

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, set_seed
from trl import SFTConfig, SFTTrainer

WORDS = ["<pad>", "<eos>", "<unk>", "say", "twice", ":", *(f"w{i}" for i in range(40))]


def make_tokenizer():
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )


def examples(count):
    for _ in range(count):
        words = random.choices(WORDS[6:], k=random.randint(2, 6))
        yield {
            "prompt": f"say twice : {' '.join(words)}",
            "completion": f" {' '.join(words)} {' '.join(words)}",
        }


def main():
    set_seed(0)
    tokenizer = make_tokenizer()
    config = GPT2Config(
        vocab_size=len(WORDS),
        n_positions=64,
        n_embd=64,
        n_layer=2,
        n_head=2,
        bos_token_id=1,
        eos_token_id=1,
        pad_token_id=0,
    )
    model = GPT2LMHeadModel(config)
    arguments = SFTConfig(
        output_dir="out",
        max_steps=30,
        per_device_train_batch_size=8,
        learning_rate=1e-3,
        logging_steps=5,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        max_length=64,
        seed=0,
    )
    trainer = SFTTrainer(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_list(list(examples(256))),
        processing_class=tokenizer,
    )
    trainer.train()


if __name__ == "__main__":
    main()
