"""PyTorch Geometric: GraphSAGE on one large graph, whose NeighborLoader samples neighbours."""

import torch
import torch.nn.functional as F
from torch_geometric import seed_everything
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import SAGEConv


class SAGE(torch.nn.Module):
    def __init__(self, inputs, hidden, classes):
        super().__init__()
        self.conv1 = SAGEConv(inputs, hidden)
        self.conv2 = SAGEConv(hidden, classes)

    def forward(self, x, edge_index):
        x = self.conv1(x, edge_index).relu()
        x = F.dropout(x, p=0.5, training=self.training)
        return self.conv2(x, edge_index)


def graph(nodes=1200, classes=4):
    y = torch.randint(classes, (nodes,))
    x = torch.randn(nodes, 16) + F.one_hot(y, 16)
    ends = torch.randint(nodes, (2, 40 * nodes))
    alike = y[ends[0]] == y[ends[1]]
    edges = ends[:, alike | (torch.rand(ends.shape[1]) < 0.05)]
    train = torch.rand(nodes) < 0.6
    return Data(x=x, edge_index=edges, y=y, train_mask=train, test_mask=~train)


def train(model, loader, optimizer):
    model.train()
    total = 0.0
    for batch in loader:
        optimizer.zero_grad()
        out = model(batch.x, batch.edge_index)[: batch.batch_size]
        loss = F.cross_entropy(out, batch.y[: batch.batch_size])
        loss.backward()
        optimizer.step()
        total += float(loss.detach())
    return total / len(loader)


@torch.no_grad()
def test(model, data):
    model.eval()
    right = model(data.x, data.edge_index).argmax(1) == data.y
    return float(right[data.test_mask].float().mean())


def main():
    seed_everything(0)
    data = graph()
    loader = NeighborLoader(
        data, num_neighbors=[8, 4], batch_size=64, input_nodes=data.train_mask, shuffle=True
    )
    model = SAGE(16, 32, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(3):
        loss = train(model, loader, optimizer)
        print(f"epoch {epoch}: loss {loss:.4f}, accuracy {test(model, data):.3f}")


if __name__ == "__main__":
    main()
