"""Lightning with manual optimization: a GAN whose networks step in turn."""

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class GAN(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(8, 64), nn.LeakyReLU(0.2), nn.Linear(64, 2))
        self.discriminator = nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))

    def training_step(self, batch, batch_idx):
        (real,) = batch
        for_generator, for_discriminator = self.optimizers()
        fake = self.generator(torch.randn(len(real), 8, device=self.device))
        ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)

        judged_real = self.discriminator(real)
        judged_fake = self.discriminator(fake.detach())
        loss_d = F.binary_cross_entropy_with_logits(judged_real, ones)
        loss_d = loss_d + F.binary_cross_entropy_with_logits(judged_fake, zeros)
        for_discriminator.zero_grad()
        self.manual_backward(loss_d)
        for_discriminator.step()

        judged = self.discriminator(fake)
        loss_g = F.binary_cross_entropy_with_logits(judged, ones)
        for_generator.zero_grad()
        self.manual_backward(loss_g)
        for_generator.step()
        self.log_dict({"loss_d": loss_d, "loss_g": loss_g})

    def configure_optimizers(self):
        return (
            torch.optim.Adam(self.generator.parameters(), lr=1e-3, betas=(0.5, 0.99)),
            torch.optim.Adam(self.discriminator.parameters(), lr=1e-3, betas=(0.5, 0.99)),
        )


def main():
    pl.seed_everything(0)
    angles = torch.rand(1024) * 6.2832
    points = torch.stack([angles.cos(), angles.sin()], 1) + 0.05 * torch.randn(1024, 2)
    trainer = pl.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(GAN(), DataLoader(TensorDataset(points), batch_size=32, shuffle=True))


if __name__ == "__main__":
    main()
