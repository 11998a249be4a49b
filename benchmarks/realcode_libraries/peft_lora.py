"""peft's LoRA around a small Llama, trained by transformers.Trainer."""

import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed


class Sequences(Dataset):
    """Each sequence goes through the tokens with a step of its own."""

    def __init__(self, count, length=24, vocabulary=64):
        start = torch.randint(vocabulary, (count, 1))
        step = torch.randint(1, 4, (count, 1))
        self.tokens = (start + step * torch.arange(length)) % vocabulary

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def main():
    set_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    lora = LoraConfig(
        r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"
    )
    model = get_peft_model(LlamaForCausalLM(config), lora)
    model.print_trainable_parameters()
    arguments = TrainingArguments(
        output_dir="out",
        max_steps=30,
        per_device_train_batch_size=8,
        learning_rate=5e-3,
        logging_steps=5,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        seed=0,
    )
    Trainer(model=model, args=arguments, train_dataset=Sequences(256)).train()


if __name__ == "__main__":
    main()
