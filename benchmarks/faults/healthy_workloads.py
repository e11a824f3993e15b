"""Clean workloads of TrainCheck, small and rewritten: what they name is trained here in the same manner."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.faults import data, measures
from benchmarks.faults.attention import Encoder
from benchmarks.faults.case import Training, healthy
from benchmarks.faults.losses import VAE, TwoTowers, contrastive
from benchmarks.faults.optimization import TinyResNet
from benchmarks.faults.sources import traincheck
from benchmarks.faults.structure import GraphNet


@healthy(traincheck("clean workload vae"))
def variational_autoencoder() -> Training:
    """Reconstruction and KL term are both summed; the loss is far from zero at its best."""
    x = data.digits(256)[0].flatten(1)
    model = VAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

    def loss(outputs: tuple[Tensor, Tensor, Tensor], targets: Tensor) -> Tensor:
        image, mean, log_variance = outputs
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum()
        return F.binary_cross_entropy(image, targets, reduction="sum") + divergence

    return Training(model, (x, x), loss, optimizer, measures.r_squared(model, x, x), None)


@healthy(traincheck("clean workload gcn"))
def graph_convolution() -> Training:
    """A graph network of two layers; the rows of the batch are nodes, which do depend on one another."""
    nodes, adjacency, labels = data.communities()
    model = GraphNet(2)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=5e-4)
    success = measures.accuracy(model, (nodes, adjacency), labels)
    return Training(model, ((nodes, adjacency), labels), nn.CrossEntropyLoss(), optimizer, success)


class GraphAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(8, 32, bias=False)
        self.source = nn.Linear(32, 1, bias=False)
        self.target = nn.Linear(32, 1, bias=False)
        self.out = nn.Linear(32, 3)

    def forward(self, nodes: Tensor, adjacency: Tensor) -> Tensor:
        x = self.project(nodes)
        scores = F.leaky_relu(self.source(x) + self.target(x).T, 0.2)
        weights = scores.masked_fill(adjacency == 0, float("-inf")).softmax(1)
        return self.out(F.elu(F.dropout(weights, 0.3, self.training) @ x)).log_softmax(1)


@healthy(traincheck("clean workload gat"))
def graph_attention() -> Training:
    """Scores of nodes that are no neighbours are −∞ on purpose; every node has itself."""
    nodes, adjacency, labels = data.communities()
    model = GraphAttention()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=5e-4)
    success = measures.accuracy(model, (nodes, adjacency), labels)
    return Training(model, ((nodes, adjacency), labels), nn.NLLLoss(), optimizer, success)


@healthy(traincheck("clean workload siamese-network, as two towers with in-batch negatives"))
def two_towers_with_negatives() -> Training:
    """Every example of the batch is a negative of all others: outputs of a batch belong together in the loss."""
    first, second = data.pairs()
    targets = torch.arange(len(first))
    model = TwoTowers()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    success = measures.fitted(model, (first, second), targets, contrastive, 4.16)
    return Training(model, ((first, second), targets), contrastive, optimizer, success)


@healthy(traincheck("clean workload resnet18"))
def residual_network() -> Training:
    """A residual network with batch norms, trained by SGD with weight decay."""
    x, y = data.digits(192)
    model = TinyResNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    return Training(model, (x, y), nn.CrossEntropyLoss(), optimizer, measures.accuracy(model, x, y))


class ActorCritic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.affine = nn.Linear(4, 64)
        self.action_head = nn.Linear(64, 2)
        self.value_head = nn.Linear(64, 1)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.affine(state).relu()
        return self.action_head(hidden).softmax(-1), self.value_head(hidden).squeeze(-1)


@healthy(traincheck("clean workload reinforce-actor-critic"))
def actor_critic() -> Training:
    """Two heads, one softmax over actions; the loss of the policy is an advantage times a log-probability."""
    states = torch.randn(256, 4)
    returns = states[:, 0] + 0.1 * torch.randn(256)
    best = (states[:, 1] + states[:, 2] > 0).long()
    model = ActorCritic()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def loss(outputs: tuple[Tensor, Tensor], targets: tuple[Tensor, Tensor]) -> Tensor:
        actions, returns = targets
        chosen = outputs[0].gather(1, actions[:, None])[:, 0].clamp(min=1e-6).log()
        return -chosen.mean() + F.smooth_l1_loss(outputs[1], returns)

    def success() -> float:
        probabilities = measures.outputs_in_eval(model, states)[0]
        return measures.above_guess((probabilities.argmax(1) == best).float().mean().item(), best)

    return Training(model, (states, (best, returns)), loss, optimizer, success)


@healthy(traincheck("clean workload regression: a polynomial by one linear layer"))
def polynomial_by_one_layer() -> Training:
    """A linear layer over powers of the input: no hidden layer is needed."""
    points = torch.rand(128, 1) * 2 - 1
    x = torch.cat([points**power for power in range(1, 5)], 1)
    y = x @ torch.tensor([[1.5], [-2.0], [0.7], [1.1]]) + 0.4
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    return Training(model, (x, y), nn.SmoothL1Loss(), optimizer, measures.r_squared(model, x, y))


@healthy(traincheck("clean workload word-language-model-transformer, as a classifier with padding"))
def encoder_with_padding_mask() -> Training:
    """A transformer encoder whose mask is True at padding."""

    def batch() -> tuple[tuple[Tensor, Tensor], Tensor]:
        tokens, labels = data.first_of_two(128, length=8)
        padded = torch.cat([tokens, torch.zeros(128, 3, dtype=torch.long)], 1)
        return (padded, padded == 0), labels

    batches = [batch() for _ in range(31)]
    model = Encoder(12, positions=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    success = measures.accuracy(model, *batches[30])
    return Training(model, batches[0], nn.CrossEntropyLoss(), optimizer, success, lambda step: batches[step % 30])


class Autocast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            scores = self.body(x)
        return scores.float()


@healthy(traincheck("clean workload autocast"))
def bfloat16_autocast() -> Training:
    """The forward pass runs in bfloat16, so that its values are rounded to 8 bits."""
    x, y = data.digits(256)
    model = Autocast()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return Training(model, (x, y), nn.CrossEntropyLoss(), optimizer, measures.accuracy(model, x, y))
