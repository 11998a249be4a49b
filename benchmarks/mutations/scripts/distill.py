"""Knowledge distillation: a wide teacher is trained, then a narrow student learns from it."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


def spirals(n, classes=5, noise=0.12):
    label = torch.randint(classes, (n,))
    radius = torch.rand(n)
    angle = 4 * radius + 6.2832 * label / classes + noise * torch.randn(n)
    xy = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)
    return torch.cat([xy, 0.5 * torch.randn(n, 6)], dim=1), label


def make_mlp(widths, dropout=0.0):
    layers = []
    for a, b in zip(widths[:-2], widths[1:-1]):
        layers += [nn.Linear(a, b), nn.ReLU(), nn.Dropout(dropout)]
    return nn.Sequential(*layers, nn.Linear(widths[-2], widths[-1]))


def distillation_loss(student_logits, teacher_logits, labels, temperature, alpha):
    soft = F.kl_div(
        F.log_softmax(student_logits / temperature, dim=1),
        F.softmax(teacher_logits / temperature, dim=1),
        reduction="batchmean",
    )
    hard = F.cross_entropy(student_logits, labels)
    return alpha * temperature**2 * soft + (1 - alpha) * hard


def fit_teacher(teacher, loader, epochs):
    optimizer = torch.optim.AdamW(teacher.parameters(), lr=4e-3, weight_decay=1e-3)
    teacher.train()
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(teacher(x), y)
            loss.backward()
            optimizer.step()
    return loss.item()


def fit_student(student, teacher, loader, epochs, temperature=3.0, alpha=0.7):
    optimizer = torch.optim.SGD(student.parameters(), lr=0.2, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=0.2, total_steps=epochs * len(loader)
    )
    teacher.eval()
    for epoch in range(epochs):
        student.train()
        for x, y in loader:
            with torch.no_grad():
                teacher_logits = teacher(x)
            student_logits = student(x)
            loss = distillation_loss(student_logits, teacher_logits, y, temperature, alpha)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
        print(f"epoch {epoch}: {loss.item():.4f}")


def accuracy(model, x, y):
    model.eval()
    with torch.no_grad():
        return (model(x).argmax(1) == y).float().mean().item()


def main():
    torch.manual_seed(2)
    train = TensorDataset(*spirals(3000))
    test_x, test_y = spirals(2000)
    loader = DataLoader(train, batch_size=64, shuffle=True)
    teacher = make_mlp([8, 128, 128, 5], dropout=0.1)
    print(f"teacher loss {fit_teacher(teacher, loader, epochs=10):.4f}")
    print(f"teacher accuracy {accuracy(teacher, test_x, test_y):.4f}")
    student = make_mlp([8, 24, 24, 5])
    fit_student(student, teacher, loader, epochs=12)
    print(f"held-out accuracy {accuracy(student, test_x, test_y):.4f}")


if __name__ == "__main__":
    main()
