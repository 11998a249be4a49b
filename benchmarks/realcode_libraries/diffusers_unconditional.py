"""diffusers' unconditional training under Accelerate: a small UNet learns to predict the noise."""

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from diffusers import DDPMScheduler, UNet2DModel
from diffusers.optimization import get_scheduler
from diffusers.training_utils import EMAModel
from torch.utils.data import DataLoader, TensorDataset


def images(count, size=16):
    grid = torch.linspace(-1, 1, size)
    radius = (grid[:, None] ** 2 + grid[None, :] ** 2).sqrt()
    return (torch.rand(count, 1, 1, 1) - radius).clamp(-0.3, 0.3) / 0.3


def main():
    set_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=1)
    model = UNet2DModel(
        sample_size=16,
        in_channels=1,
        out_channels=1,
        layers_per_block=1,
        block_out_channels=(16, 32),
        norm_num_groups=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )
    average = EMAModel(model.parameters(), decay=0.99)
    noise_scheduler = DDPMScheduler(num_train_timesteps=100)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-6)
    loader = DataLoader(TensorDataset(images(128)), batch_size=8, shuffle=True)
    scheduler = get_scheduler(
        "cosine", optimizer, num_warmup_steps=4, num_training_steps=2 * len(loader)
    )
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    for epoch in range(2):
        model.train()
        for (clean,) in loader:
            noise = torch.randn_like(clean)
            timesteps = torch.randint(0, 100, (len(clean),))
            noisy = noise_scheduler.add_noise(clean, noise, timesteps)
            with accelerator.accumulate(model):
                predicted = model(noisy, timesteps).sample
                loss = F.mse_loss(predicted, noise)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                average.step(model.parameters())
        accelerator.print(f"epoch {epoch}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
