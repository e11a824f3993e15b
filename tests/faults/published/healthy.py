"""Healthy trainings that look like a fault: losses, targets, optimizers, and clean workloads of TrainCheck."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from tests.faults import data
from tests.faults.catalogue import Training, healthy, looks_odd
from tests.faults.networks import (
    VAE,
    Encoder,
    GraphNet,
    TinyResNet,
    TwoTowers,
    contrastive,
    mlp,
)
from tests.faults.training import (
    accuracy,
    adam,
    adamw,
    binary_accuracy,
    fitted,
    made,
    module,
    outputs_in_eval,
    sgd,
    share_correct,
)


@healthy("own", "targets of a regression in the thousands")
def targets_in_the_thousands() -> Training:
    """Targets are between 2,000 and 8,000, and Adam's rate and the last bias go with them."""
    x, y = data.smooth_function()
    model = mlp(6, 128, 128, 1)
    nn.init.constant_(model[4].bias, 5000.0)
    return made(model, x, 5000 + 1000 * y, adam(3e-2))


looks_odd(
    "loss_summed_over_the_batch",
    "The loss is the sum over 256 examples, and the rate is 256 times smaller.",
    ("own", "loss summed over the batch"),
    lambda: made(mlp(64, 64, 10, flat=True), *data.digits(256), sgd(0.1 / 256), nn.CrossEntropyLoss(reduction="sum")),
)


@healthy("own", "rare positives: 3 %")
def very_imbalanced_classes() -> Training:
    """Three per cent of the examples are positive, and their weight in the loss is raised."""
    x = torch.randn(512, 16)
    score = x[:, 0] + 0.5 * x[:, 1]
    y = (score > score.sort().values[-16]).float()
    loss = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(10.0))
    return made(mlp(16, 32, 1, last=[nn.Flatten(0)]), x, y, adam(1e-2), loss, guess=0.5)


@healthy("own", "policy gradient with maximize=True on the reward")
def reward_maximized_on_purpose() -> Training:
    """A policy's expected reward is the objective, and the optimizer maximizes it."""
    states = torch.randn(256, 8)
    best = (states @ torch.randn(8, 4)).argmax(1)
    policy = mlp(8, 48, 4, act=nn.Tanh, last=[nn.Softmax(dim=-1)])
    reward = lambda probabilities, actions: probabilities.gather(1, actions[:, None]).mean()  # noqa: E731
    return made(policy, states, best, adam(1e-2, maximize=True), reward)


@healthy("own", "label smoothing: the loss has a floor")
def label_smoothing_with_a_floor() -> Training:
    """With label smoothing of 0.2 the cross entropy cannot fall below 0.8."""
    model = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(144, 10))
    return made(model, *data.digits(256), adamw(5e-3), nn.CrossEntropyLoss(label_smoothing=0.2))


@healthy("own", "labels of which two thirds are ignored")
def most_labels_ignored() -> Training:
    """A tagger is trained on the third of the tokens that are annotated; the others have label −100."""
    tokens = torch.randint(0, 12, (64, 12))
    tags = (tokens + tokens.roll(1, 1)) % 3
    labels = tags.clone()
    labels[torch.rand(64, 12) < 0.66] = -100
    labels[:, 0] = -100
    transpose = module(lambda self, x: x.transpose(1, 2), "Transpose")
    convs = nn.Embedding(12, 32), transpose, nn.Conv1d(32, 48, 3, padding=1), nn.ReLU(), nn.Conv1d(48, 3, 1)
    model = nn.Sequential(*convs)

    def success() -> float:
        return share_correct(outputs_in_eval(model, tokens)[:, :, 1:].argmax(1), tags[:, 1:])

    return made(model, tokens, labels, adam(1e-2), success=success)


@healthy("own", "Gaussian negative log-likelihood")
def loss_that_becomes_negative() -> Training:
    """The Gaussian negative log-likelihood of targets with little noise is negative, and bounded by the noise."""
    x = torch.rand(256, 1) * 4 - 2
    y = 0.3 * torch.sin(2 * x) + 0.02 * torch.randn(256, 1)

    def forward(self, x):
        hidden = self.hidden(x)
        return self.mean(hidden), F.softplus(self.variance(hidden)) + 1e-4

    def loss(outputs, targets):
        return F.gaussian_nll_loss(outputs[0], targets, outputs[1])

    hidden = nn.Sequential(*mlp(1, 64, 64, act=nn.Tanh), nn.Tanh())
    return made(module(forward, hidden=hidden, mean=(64, 1), variance=(64, 1)), x, y, adam(5e-3), loss)


@healthy("own", "sigmoid output with BCELoss")
def sigmoid_output_with_bce() -> Training:
    """A network ends in a sigmoid, and BCELoss takes probabilities."""
    x, y = data.tumors()
    model = mlp(30, 24, 1, last=[nn.Sigmoid()])
    return made(model, x, y[:, None], adam(1e-2), nn.BCELoss(), binary_accuracy(model, x, y[:, None], 0.5))


@healthy("own", "mixture of softmaxes with NLLLoss")
def mixture_of_softmaxes_with_nll() -> Training:
    """The outputs are logarithms of a mixture of softmaxes, which is what NLLLoss takes."""

    def forward(self, x):
        x = x.flatten(1)
        parts = torch.stack([expert(x).softmax(-1) for expert in self.experts], 1)
        mixed = (self.gate(x).softmax(-1)[..., None] * parts).sum(1)
        return mixed.clamp(min=1e-8).log()

    model = module(forward, gate=(64, 4), experts=lambda: nn.ModuleList(mlp(64, 32, 10) for _ in range(4)))
    return made(model, *data.digits(256), adam(5e-3), nn.NLLLoss())


@healthy("own", "cosine classifier with a learned scale")
def cosine_head_with_learned_scale() -> Training:
    """Logits are cosines times a learned scale that starts at 10."""

    def forward(self, x):
        cosine = F.normalize(self.features(x), dim=1) @ F.normalize(self.classes, dim=1).T
        return self.log_scale.exp() * cosine

    features = mlp(64, 96, 32, flat=True)
    classes, log_scale = nn.Parameter(torch.randn(10, 32)), nn.Parameter(torch.tensor(math.log(10.0)))
    model = module(forward, features=features, classes=classes, log_scale=log_scale)
    return made(model, *data.digits(256), adam(5e-3))


@healthy("own", "dropout 0.5 with a small batch")
def dropout_with_a_small_batch() -> Training:
    """Dropout of 0.5 and batches of 16 make the loss noisy."""
    x, y = data.digits(512)
    batches = [(x[part], y[part]) for part in torch.randperm(512).view(32, 16)]
    first = [nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.5)]
    model = nn.Sequential(*first, nn.Linear(128, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 10))
    return made(model, *batches[0], adam(3e-3), success=accuracy(model, x, y), stream=batches)


@healthy("own", "a discriminator whose batch has one label")
def discriminator_with_one_label() -> Training:
    """The real half of a discriminator's step: all labels are 1, and the fake half follows from another call."""
    points = F.normalize(torch.randn(128, 2)) + 0.05 * torch.randn(128, 2)
    generated = 0.3 * torch.randn(128, 2)
    model = mlp(2, 64, 64, 1, act=lambda: nn.LeakyReLU(0.2))
    halves = [(points, torch.ones(128, 1)), (generated, torch.zeros(128, 1))]

    def success() -> float:
        real = (outputs_in_eval(model, points) > 0).float().mean().item()
        return real + (outputs_in_eval(model, generated) < 0).float().mean().item() - 1

    return made(model, *halves[0], adam(2e-3, betas=(0.5, 0.999)), nn.BCEWithLogitsLoss(), success, halves)


@healthy("TrainCheck", "clean workload vae")
def variational_autoencoder() -> Training:
    """Reconstruction and KL term are both summed; the loss is far from zero at its best."""
    x = data.digits(256)[0].flatten(1)

    def loss(outputs, targets):
        image, mean, log_variance = outputs
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum()
        return F.binary_cross_entropy(image, targets, reduction="sum") + divergence

    return made(VAE(), x, x, adam(5e-3), loss)


@healthy("TrainCheck", "clean workload gcn")
def graph_convolution() -> Training:
    """A graph network of two layers; the rows of the batch are nodes, which do depend on one another."""
    nodes, adjacency, labels = data.communities()
    return made(GraphNet(2), (nodes, adjacency), labels, adam(1e-2, weight_decay=5e-4))


@healthy("TrainCheck", "clean workload gat")
def graph_attention() -> Training:
    """Scores of nodes that are no neighbours are −∞ on purpose; every node has itself."""
    nodes, adjacency, labels = data.communities()

    def forward(self, nodes, adjacency):
        x = self.project(nodes)
        scores = F.leaky_relu(self.source(x) + self.target(x).T, 0.2)
        weights = scores.masked_fill(adjacency == 0, float("-inf")).softmax(1)
        return self.out(F.elu(F.dropout(weights, 0.3, self.training) @ x)).log_softmax(1)

    widths = {"project": (8, 32), "source": (32, 1), "target": (32, 1)}
    model = module(forward, **{name: nn.Linear(*pair, bias=False) for name, pair in widths.items()}, out=(32, 3))
    return made(model, (nodes, adjacency), labels, adam(1e-2, weight_decay=5e-4), nn.NLLLoss())


@healthy("TrainCheck", "clean workload siamese-network, as two towers with in-batch negatives")
def two_towers_with_negatives() -> Training:
    """Every example of the batch is a negative of all others: outputs of a batch belong together in the loss."""
    towers = data.pairs()
    targets, model = torch.arange(len(towers[0])), TwoTowers()
    return made(model, towers, targets, adam(5e-3), contrastive, fitted(model, towers, targets, contrastive, 4.16))


looks_odd(
    "residual_network",
    "A residual network with batch norms, trained by SGD with weight decay.",
    ("TrainCheck", "clean workload resnet18"),
    lambda: made(TinyResNet(), *data.digits(192), sgd(0.1, weight_decay=5e-4)),
)


@healthy("TrainCheck", "clean workload reinforce-actor-critic")
def actor_critic() -> Training:
    """Two heads, one softmax over actions; the loss of the policy is an advantage times a log-probability."""
    states = torch.randn(256, 4)
    returns = states[:, 0] + 0.1 * torch.randn(256)
    best = (states[:, 1] + states[:, 2] > 0).long()

    def forward(self, state):
        hidden = self.affine(state).relu()
        return self.action_head(hidden).softmax(-1), self.value_head(hidden).squeeze(-1)

    model = module(forward, affine=(4, 64), action_head=(64, 2), value_head=(64, 1))

    def loss(outputs, targets):
        actions, returns = targets
        chosen = outputs[0].gather(1, actions[:, None])[:, 0].clamp(min=1e-6).log()
        return -chosen.mean() + F.smooth_l1_loss(outputs[1], returns)

    def success() -> float:
        return share_correct(outputs_in_eval(model, states)[0].argmax(1), best)

    return made(model, states, (best, returns), adam(1e-2), loss, success)


@healthy("TrainCheck", "clean workload regression: a polynomial by one linear layer")
def polynomial_by_one_layer() -> Training:
    """A linear layer over powers of the input: no hidden layer is needed."""
    points = torch.rand(128, 1) * 2 - 1
    x = torch.cat([points**power for power in range(1, 5)], 1)
    y = x @ torch.tensor([[1.5], [-2.0], [0.7], [1.1]]) + 0.4
    return made(nn.Linear(4, 1), x, y, sgd(0.3, 0.0), nn.SmoothL1Loss())


@healthy("TrainCheck", "clean workload word-language-model-transformer, as a classifier with padding")
def encoder_with_padding_mask() -> Training:
    """A transformer encoder whose mask is True at padding."""
    batches = [data.padded(3) for _ in range(31)]
    model = Encoder(12, positions=True)
    return made(model, *batches[0], adamw(3e-3), success=accuracy(model, *batches[30]), stream=batches[:30])


@healthy("TrainCheck", "clean workload autocast")
def bfloat16_autocast() -> Training:
    """The forward pass runs in bfloat16, so that its values are rounded to 8 bits."""

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            scores = self.body(x)
        return scores.float()

    return made(module(forward, body=lambda: mlp(64, 128, 10, flat=True)), *data.digits(256), adam(3e-3))
