# VQ-VAE with an exponential moving average of the codebook
import torch
import torch.nn as nn
import torch.nn.functional as F


class Quantizer(nn.Module):
    def __init__(self, codes, size, decay=0.95):
        super().__init__()
        self.decay = decay
        codebook = torch.randn(codes, size)
        self.register_buffer("codebook", codebook)
        self.register_buffer("code_count", torch.ones(codes))
        self.register_buffer("code_sum", codebook.clone())

    def forward(self, z):
        flat = z.permute(0, 2, 3, 1).reshape(-1, z.shape[1])
        distance = (
            flat.pow(2).sum(1, keepdim=True)
            - 2 * flat @ self.codebook.t()
            + self.codebook.pow(2).sum(1)
        )
        index = distance.argmin(1)
        quantized = self.codebook[index]
        if self.training:
            self.update(flat.detach(), index)
        quantized = quantized.view(z.shape[0], z.shape[2], z.shape[3], -1).permute(0, 3, 1, 2)
        commitment = F.mse_loss(z, quantized.detach())
        quantized = z + (quantized - z).detach()
        return quantized, commitment

    @torch.no_grad()
    def update(self, flat, index):
        one_hot = F.one_hot(index, len(self.codebook)).type_as(flat)
        self.code_count.lerp_(one_hot.sum(0), 1 - self.decay)
        self.code_sum.lerp_(one_hot.t() @ flat, 1 - self.decay)
        self.codebook.copy_(self.code_sum / (self.code_count.unsqueeze(1) + 1e-5))


class VQVAE(nn.Module):
    def __init__(self, width=24, size=8, codes=32):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, width, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, size, 1),
        )
        self.quantizer = Quantizer(codes, size)
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(size, width, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(width, 1, 4, stride=2, padding=1),
        )

    def forward(self, x):
        z = self.encoder(x)
        z, commitment = self.quantizer(z)
        return self.decoder(z), commitment


def stripes(n):
    """Pictures of waves with a random direction and wave length."""
    angle = torch.rand(n, 1, 1) * 3.14159
    scale = torch.rand(n, 1, 1) * 0.5 + 0.4
    y, x = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
    return torch.sin(scale * (x * angle.cos() + y * angle.sin())).unsqueeze(1)


torch.manual_seed(0)
train_x, test_x = stripes(1024), stripes(256)
vqvae = VQVAE()
opt = torch.optim.Adam(vqvae.parameters(), lr=2e-3)
beta = 0.25
for epoch in range(6):
    vqvae.train()
    total = 0.0
    for batch in train_x[torch.randperm(len(train_x))].split(32):
        recon, commitment = vqvae(batch)
        loss = F.mse_loss(recon, batch) + beta * commitment
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
    print(f"epoch {epoch}: loss {total / 32:.4f}")

vqvae.eval()
with torch.no_grad():
    recon, _ = vqvae(test_x)
    print(f"held-out error {F.mse_loss(recon, test_x).item():.5f}")
