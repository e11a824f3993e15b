"""Faults of the structure: missing or excessive parts, and layers that are not what they were meant to be."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.faults import data, measures
from benchmarks.faults.case import Training, fault
from benchmarks.faults.sources import Source, defaultpp, own, remembered, traincheck, umlaut
from benchmarks.faults.truth import NO_GRADIENT, NOT_FITTED, both


@fault(
    "structure",
    umlaut("Missing activation functions"),
    both(
        r"linear|activation|nonlinear\w*",
        r"no |missing|without|linear in|affine|collapse\w*|stack\w*|add|only linear|single linear",
    ),
)
def no_activation_between_layers(broken: bool) -> Training:
    """A disk inside a ring is to be separated by a network without activations."""
    x, y = data.circles()
    act = nn.Identity if broken else nn.ReLU
    model = nn.Sequential(nn.Linear(2, 32), act(), nn.Linear(32, 32), act(), nn.Linear(32, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    return Training(model, (x, y), nn.CrossEntropyLoss(), optimizer, measures.accuracy(model, x, y))


class DroppedNet(nn.Module):
    def __init__(self, p: float) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 16, 3)
        self.drop1 = nn.Dropout(p)
        self.fc = nn.Linear(144, 48)
        self.drop2 = nn.Dropout(p)
        self.out = nn.Linear(48, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop1(F.max_pool2d(torch.relu(self.conv(x)), 2).flatten(1))
        return self.out(self.drop2(torch.relu(self.fc(x))))


@fault(
    "structure",
    umlaut("High dropout rate (a keep probability passed as a drop probability)"),
    both(
        r"dropout|drop1|drop2|dropped", r"0\.9\d|9\d ?%|high|rate|most|nearly all|probab\w*|large|lower|too much|p ?="
    ),
    symptom=NOT_FITTED + "|nois|eval|train",
    reaches=0.85,
    below=0.6,
)
def keep_probability_as_dropout(broken: bool) -> Training:
    """Dropout of 0.97 where a keep probability of 0.97 was meant."""
    x, y = data.digits(256)
    model = DroppedNet(0.97 if broken else 0.03)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    return Training(model, (x, y), nn.CrossEntropyLoss(), optimizer, measures.accuracy(model, x, y), None)


class BlockList(nn.Module):
    def __init__(self, registered: bool) -> None:
        super().__init__()
        blocks = [nn.Linear(2, 16), *(nn.Linear(16, 16) for _ in range(2)), nn.Linear(16, 2)]
        self.layers = nn.ModuleList(blocks) if registered else blocks
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.layers[0](x)).relu()
        for layer in self.layers[1:-1]:
            x = layer(x).relu()
        return self.layers[-1](x)


@fault(
    "structure",
    remembered("layers in a Python list are not registered"),
    both(
        r"regist\w*|modulelist|python list|not (in|among|part of) (the )?(model\.)?parameters|"
        r"parameters\(\)|not (a )?(parameters?|submodules?)|unknown to|not in the optimizer|"
        r"the optimizer (does not|holds no|lacks|misses)",
        r"list|layers?|parameters?|weights?|modules?",
    ),
    symptom=NOT_FITTED + "|few parameters|not trained|frozen",
    below=0.7,
)
def layers_in_a_python_list(broken: bool) -> Training:
    """Linear layers are kept in a Python list, so that the optimizer gets those of the batch norm only."""
    x, y = data.circles()
    model = BlockList(registered=not broken)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    return Training(model, (x, y), nn.CrossEntropyLoss(), optimizer, measures.accuracy(model, x, y))


class FreshHead(nn.Module):
    def __init__(self, fresh: bool) -> None:
        super().__init__()
        self.rnn = nn.RNN(8, 48, batch_first=True)
        self.head = nn.Linear(48, 10)
        self.fresh = fresh

    def forward(self, x: Tensor) -> Tensor:
        head = nn.Linear(48, 10) if self.fresh else self.head
        return head(self.rnn(x.squeeze(1))[0][:, -1])


@fault(
    "structure",
    remembered("a layer created in forward"),
    both(
        r"creat\w*|new|fresh|random|each (call|forward)|every (call|forward|step)|not regist\w*|"
        r"unregistered|differs? (between|from)|not determin\w*|nondetermin\w*",
        r"forward|head|layer|weights?|parameters?|output",
    ),
    symptom=NOT_FITTED + "|unused|no gradient|never used|nois",
)
def layer_created_in_forward(broken: bool) -> Training:
    """A recurrent network over the rows of digits makes a new output layer in every forward pass."""
    x, y = data.digits(256)
    model = FreshHead(fresh=broken)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    return Training(model, (x, y), nn.CrossEntropyLoss(), optimizer, measures.accuracy(model, x, y))


class DeepResidual(nn.Module):
    def __init__(self, depth: int, skip: bool) -> None:
        super().__init__()
        self.stem = nn.Linear(64, 48)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(48), nn.Linear(48, 48), nn.GELU(), nn.Linear(48, 48)) for _ in range(depth)
        )
        self.head = nn.Linear(48, 10)
        self.skip = skip

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x.flatten(1))
        for block in self.blocks:
            x = x + block(x) if self.skip else block(x)
        return self.head(x)


@fault(
    "structure",
    defaultpp("RRS: skip connection bypassed"),
    both(
        r"skip|residual|shortcut|vanish\w*|shrink\w*|alike|identity|\bdies?\b|lost",
        r"connection|gradient|signal|missing|without|blocks?|layers?|examples?|depth",
    ),
    reaches=0.85,
    constant_outputs=True,
)
def skip_connections_forgotten(broken: bool) -> Training:
    """Thirty residual blocks return their branch only."""
    x, y = data.digits(128)
    model = DeepResidual(30, skip=not broken)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return Training(model, (x, y), nn.CrossEntropyLoss(), optimizer, measures.accuracy(model, x, y), None)


class Narrow(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU())
        self.squeeze = nn.Linear(64, width)
        self.classifier = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.squeeze(self.features(x)).relu())


@fault(
    "structure",
    Source("DEFault", "layer fault: number of neurons changed (1 to 256)", "https://arxiv.org/abs/2501.12560"),
    both(
        r"width|narrow|bottleneck|units?|neurons?|rank|dimension\w*|features?|capacity",
        r"one|1\b|narrow|few|small|low|bottleneck|single|wider",
    ),
    modules=("squeeze",),
    reaches=0.9,
    below=0.7,
    constant_outputs=True,
)
def layer_of_one_unit(broken: bool) -> Training:
    """A layer of a digit classifier has one unit."""
    x, y = data.digits(256)
    model = Narrow(1 if broken else 32)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    return Training(model, (x, y), nn.CrossEntropyLoss(), optimizer, measures.accuracy(model, x, y))


class GraphNet(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.inp = nn.Linear(8, 32)
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(layers))
        self.out = nn.Linear(32, 3)

    def forward(self, nodes: Tensor, adjacency: Tensor) -> Tensor:
        walk = adjacency / adjacency.sum(1, keepdim=True)
        x = self.inp(nodes).relu()
        for layer in self.layers:
            x = layer(walk @ x).relu()
        return self.out(x)


@fault(
    "structure",
    traincheck("clean workload gcn, with the oversmoothing of deep graph networks (Li et al. 2018, from memory)"),
    both(
        r"alike|smooth\w*|identical|same|correlat\w*|collaps\w*|similar|indistinguish\w*|converge",
        r"node|example|output|feature|representation|layer|depth|vector",
    ),
    symptom=NOT_FITTED + "|vanish|shrink|depth",
    reaches=0.7,
    below=0.4,
    constant_outputs=True,
)
def graph_network_of_forty_layers(broken: bool) -> Training:
    """Forty rounds of averaging over neighbours make all nodes alike; two are enough."""
    nodes, adjacency, labels = data.communities()
    model = GraphNet(40 if broken else 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    success = measures.accuracy(model, (nodes, adjacency), labels)
    return Training(model, ((nodes, adjacency), labels), nn.CrossEntropyLoss(), optimizer, success)


class NormedConv(nn.Module):
    def __init__(self, momentum: float) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3)
        self.bn1 = nn.BatchNorm2d(16, momentum=momentum)
        self.conv2 = nn.Conv2d(16, 16, 3)
        self.bn2 = nn.BatchNorm2d(16, momentum=momentum)
        self.fc = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn1(self.conv1(x)).relu()
        x = F.avg_pool2d(self.bn2(self.conv2(x)).relu(), 2)
        return self.fc(x.flatten(1))


@fault(
    "structure",
    remembered("batch norm ported from TensorFlow: momentum 0.999 becomes 0.001; good in train(), bad in eval()"),
    both(r"batch.?norm\w*|bn1|bn2|running|statistics|momentum", r"eval\w*|running|momentum|inference|stale|mode"),
    symptom=r"eval\w*|inference",
    reaches=0.9,
    below=0.6,
)
def batch_norm_momentum_of_tensorflow(broken: bool) -> Training:
    """The running statistics move by a thousandth per step: after a short training, evaluation uses initial ones."""
    x, y = data.digits(256)
    x = 3 * x - 1
    model = NormedConv(0.001 if broken else 0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    warm_up = Training(model, (x, y), nn.CrossEntropyLoss(), optimizer, lambda: 0.0)
    measures.train(warm_up, 40)  # the fault shows in evaluation after some training
    optimizer.zero_grad()
    success = measures.fitted(model, x, y, F.cross_entropy, 2.3026)
    return Training(model, (x, y), nn.CrossEntropyLoss(), optimizer, success)


class ForgetfulDropout(nn.Module):
    def __init__(self, always: bool) -> None:
        super().__init__()
        self.embed = nn.Linear(64, 24)
        self.classify = nn.Linear(24, 10)
        self.always = always

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(self.embed(x.flatten(1)).relu(), 0.5, training=self.always or self.training)
        return self.classify(x)


@fault(
    "structure",
    traincheck(
        "transformers-33844: dropout is active in evaluation mode",
        "https://github.com/huggingface/transformers/pull/33844",
    ),
    both(
        r"dropout|random\w*|stochastic|nois\w*|differs?|not determin\w*|nondetermin\w*",
        r"eval\w*|inference|mode|training=",
    ),
    symptom=r"dropout|random\w*|determin\w*|stochastic|eval",
    reaches=0.94,
    below=0.92,
)
def functional_dropout_in_evaluation(broken: bool) -> Training:
    """`F.dropout` is called without the network's mode: outputs are random in evaluation too."""
    x, y = data.digits(256)
    model = ForgetfulDropout(always=broken)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    return Training(model, (x, y), nn.CrossEntropyLoss(), optimizer, measures.accuracy(model, x, y))


class Flattened(nn.Module):
    def __init__(self, early: bool) -> None:
        super().__init__()
        self.early = early
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.pool: nn.Module = nn.AdaptiveAvgPool2d(1) if early else nn.AdaptiveAvgPool2d(4)
        self.fc = nn.Linear(32 if early else 512, 10)

    def forward(self, x: Tensor) -> Tensor:
        if self.early:
            return self.fc(self.conv2(self.conv1(self.pool(x)).relu()).relu().flatten(1))
        return self.fc(self.pool(self.conv2(self.conv1(x).relu()).relu()).flatten(1))


@fault(
    "structure",
    own("global pooling before the convolutions (NeuraLint has a rule on too much pooling: checkDisPoolTooMuch)"),
    both(
        r"pool\w*|spatial|position\w*|pixels?|permut\w*|resolution|information",
        r"pool\w*|lost|loses|averag\w*|1 ?[x×] ?1|invariant|discard\w*|never reach\w*|does not depend|early|mean",
    ),
    symptom=NOT_FITTED + "|" + NO_GRADIENT + "|alike|similar|constant",
    below=0.5,
    constant_outputs=True,
)
def pooled_before_the_convolutions(broken: bool) -> Training:
    """The image is averaged to one pixel before the first convolution."""
    x, y = data.digits(256)
    model = Flattened(early=broken)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    return Training(model, (x, y), nn.CrossEntropyLoss(), optimizer, measures.accuracy(model, x, y))
