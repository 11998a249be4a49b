"""Contrastive two-tower model: queries of words meet documents of features."""

import torch
import torch.nn.functional as F
from torch import nn, optim

torch.manual_seed(5)

topics, words, length, dim = 60, 200, 8, 32
topic_words = torch.randint(1, words, (topics, 20))
topic_features = torch.randn(topics, 24)


def draw(n):
    topic = torch.randint(topics, (n,))
    position = torch.randint(20, (n, length))
    query = topic_words[topic].gather(1, position)
    lengths = torch.randint(3, length + 1, (n,))
    query = query.masked_fill(torch.arange(length) >= lengths[:, None], 0)
    document = topic_features[topic] + 0.8 * torch.randn(n, 24)
    return query, document, topic


class QueryTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(words, dim, padding_idx=0)
        self.proj = nn.Linear(dim, dim)

    def forward(self, query):
        mask = (query != 0).float().unsqueeze(-1)
        h = self.embedding(query) * mask
        h = h.sum(dim=1) / mask.sum(dim=1).clamp(min=1e-6)
        return F.normalize(self.proj(torch.tanh(h)), dim=-1)


class DocumentTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(24, 64)
        self.bn = nn.BatchNorm1d(64)
        self.fc2 = nn.Linear(64, dim)

    def forward(self, document):
        h = self.fc1(document)
        h = F.relu(self.bn(h))
        return F.normalize(self.fc2(h), dim=-1)


query_tower, document_tower = QueryTower(), DocumentTower()
log_temperature = nn.Parameter(torch.tensor(0.07).log())
optimizer = optim.Adam(
    [*query_tower.parameters(), *document_tower.parameters(), log_temperature], lr=4e-3
)

queries, documents, topic = draw(4000)
val_queries, val_documents, val_topic = draw(500)

for epoch in range(6):
    query_tower.train()
    document_tower.train()
    perm = torch.randperm(len(queries))
    total, batches = 0.0, 0
    for idx in perm.split(64):
        q = query_tower(queries[idx])
        d = document_tower(documents[idx])
        similarity = q @ d.t() / log_temperature.exp()
        # documents of the same topic are no negatives
        same = (topic[idx][:, None] == topic[idx][None, :]) & ~torch.eye(len(idx), dtype=torch.bool)
        similarity = similarity.masked_fill(same, -1e4)
        labels = torch.arange(len(idx))
        loss_q = F.cross_entropy(similarity, labels)
        loss_d = F.cross_entropy(similarity.t(), labels)
        loss = 0.5 * (loss_q + loss_d)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
        batches += 1
    print(f"epoch {epoch}: loss {total / batches:.3f} temperature {log_temperature.exp().item():.3f}")


def evaluate():
    query_tower.eval(), document_tower.eval()
    with torch.no_grad():
        similarity = query_tower(val_queries) @ document_tower(val_documents).t()
    best = similarity.topk(5, dim=1).indices
    return (val_topic[best] == val_topic[:, None]).float().mean().item()


print(f"held-out precision at 5: {evaluate():.4f}")
