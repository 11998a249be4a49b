"""timm's way to train: its optimizer and scheduler factories, mixup, an average of the weights."""

import timm
import torch
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import AverageMeter, ModelEmaV3, random_seed
from torch.utils.data import DataLoader, TensorDataset


def images(count, size=32):
    labels = torch.arange(count) % 4
    made = torch.randn(count, 3, size, size) * 0.5
    half = size // 2
    for quarter in range(4):
        row, column = quarter // 2 * half, quarter % 2 * half
        made[labels == quarter, :, row : row + half, column : column + half] += 1
    return TensorDataset(made, labels)


def train_one_epoch(epoch, model, loader, optimizer, loss_fn, mixup, scheduler, average):
    model.train()
    losses = AverageMeter()
    updates = epoch * len(loader)
    for image, target in loader:
        image, target = mixup(image, target)
        output = model(image)
        loss = loss_fn(output, target)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        updates += 1
        average.update(model, step=updates)
        scheduler.step_update(num_updates=updates)
        losses.update(loss.item(), len(image))
    print(f"epoch {epoch}: loss {losses.avg:.4f}")


def main():
    random_seed(0)
    model = timm.create_model("resnet10t", num_classes=4)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
    loader = DataLoader(images(128), batch_size=8, shuffle=True, drop_last=True)
    scheduler = CosineLRScheduler(
        optimizer, t_initial=2 * len(loader), warmup_t=4, warmup_lr_init=1e-4, t_in_epochs=False
    )
    mixup = Mixup(mixup_alpha=0.2, cutmix_alpha=0.0, label_smoothing=0.1, num_classes=4)
    average = ModelEmaV3(model, decay=0.99)
    for epoch in range(2):
        train_one_epoch(
            epoch, model, loader, optimizer, SoftTargetCrossEntropy(), mixup, scheduler, average
        )


if __name__ == "__main__":
    main()
