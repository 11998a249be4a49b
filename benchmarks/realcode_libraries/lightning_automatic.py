"""Lightning with automatic optimization: a classifier of made images."""

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(pl.LightningModule):
    def __init__(self, learning_rate=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.body = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
        )
        self.head = nn.Linear(8 * 8 * 8, 4)

    def forward(self, images):
        features = self.body(images)
        return self.head(features)

    def training_step(self, batch, batch_idx):
        images, labels = batch
        loss = F.cross_entropy(self(images), labels)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        images, labels = batch
        self.log("accuracy", (self(images).argmax(1) == labels).float().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=self.hparams.learning_rate)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=2)
        return [optimizer], [scheduler]


def images(count):
    labels = torch.arange(count) % 4
    made = torch.randn(count, 1, 16, 16) * 0.5
    for quarter in range(4):
        row, column = quarter // 2 * 8, quarter % 2 * 8
        made[labels == quarter, :, row : row + 8, column : column + 8] += 1
    return TensorDataset(made, labels)


def main():
    pl.seed_everything(0)
    trainer = pl.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=4,
    )
    train = DataLoader(images(256), batch_size=16, shuffle=True)
    trainer.fit(Classifier(), train, DataLoader(images(64), batch_size=32))


if __name__ == "__main__":
    main()
