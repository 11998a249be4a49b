"""A graph network learns which people know each other."""
import torch
import torch.nn as nn
import torch.nn.functional as F


def make_graph(nodes=400, groups=8, degree=24):
    group = torch.randint(groups, (nodes,))
    pairs = torch.randint(nodes, (2, nodes * degree * 3))
    same = group[pairs[0]] == group[pairs[1]]
    keep = (same | (torch.rand(pairs.shape[1]) < 0.02)) & (pairs[0] < pairs[1])
    edges = torch.unique(pairs[:, keep], dim=1)
    features = torch.randn(nodes, 16) + 0.7 * F.one_hot(group, 16)
    return features, edges[:, torch.randperm(edges.shape[1])]


def normalized_adjacency(edges, nodes):
    loops = torch.arange(nodes).repeat(2, 1)
    both = torch.cat([edges, edges.flip(0), loops], dim=1)
    degree = torch.zeros(nodes).index_add_(0, both[0], torch.ones(both.shape[1]))
    weight = (degree[both[0]] * degree[both[1]]).rsqrt()
    return torch.sparse_coo_tensor(both, weight, (nodes, nodes)).coalesce()


class GraphConv(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.linear = nn.Linear(n_in, n_out, bias=False)
        self.bias = nn.Parameter(torch.zeros(n_out))

    def forward(self, x, adjacency):
        x = self.linear(x)
        return torch.sparse.mm(adjacency, x) + self.bias


class Encoder(nn.Module):
    def __init__(self, n_in, hidden, n_out, dropout):
        super().__init__()
        self.conv1 = GraphConv(n_in, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.conv2 = GraphConv(hidden, n_out)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, adjacency):
        h = self.conv1(x, adjacency)
        h = self.dropout(F.relu(self.norm(h)))
        h = self.conv2(h, adjacency)
        return h


def scores(z, edges):
    return (z[edges[0]] * z[edges[1]]).sum(dim=-1)


def edge_loss(z, positive, nodes):
    negative = torch.randint(nodes, positive.shape)
    logits = torch.cat([scores(z, positive), scores(z, negative)], dim=0)
    labels = torch.cat([torch.ones(positive.shape[1]), torch.zeros(negative.shape[1])], dim=0)
    return F.binary_cross_entropy_with_logits(logits, labels)


@torch.no_grad()
def evaluate_auc(model, x, adjacency, positive):
    model.eval()
    z = model(x, adjacency)
    negative = torch.randint(len(x), positive.shape)
    better = scores(z, positive)[:, None] > scores(z, negative)[None, :]
    return better.float().mean().item()


def main():
    torch.manual_seed(0)
    x, edges = make_graph()
    cut = int(0.85 * edges.shape[1])
    train_edges, test_edges = edges[:, :cut], edges[:, cut:]
    adjacency = normalized_adjacency(train_edges, len(x))
    model = Encoder(16, 64, 32, dropout=0.2)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, weight_decay=1e-5)
    for epoch in range(120):
        model.train()
        optimizer.zero_grad()
        z = model(x, adjacency)
        loss = edge_loss(z, train_edges, len(x))
        loss.backward()
        optimizer.step()
        if epoch % 30 == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}")
    print(f"held-out AUC {evaluate_auc(model, x, adjacency, test_edges):.4f}")


main()
