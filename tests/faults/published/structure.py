"""Faults of the structure: missing or excessive parts, and layers that are not what they were meant to be."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.faults import data
from tests.faults.catalogue import Training, fault
from tests.faults.networks import GraphNet
from tests.faults.training import adam, fitted, made, module, sgd, train


@fault
def no_activation_between_layers(broken: bool) -> Training:
    """A disk inside a ring is to be separated by a network without activations."""
    x, y = data.circles()
    act = nn.Identity if broken else nn.ReLU
    return made(nn.Sequential(nn.Linear(2, 32), act(), nn.Linear(32, 32), act(), nn.Linear(32, 2)), x, y, adam(1e-2))


@fault
def keep_probability_as_dropout(broken: bool) -> Training:
    """Dropout of 0.97 where a keep probability of 0.97 was meant."""
    x, y = data.digits(256)
    p = 0.97 if broken else 0.03

    def forward(self, x):
        x = self.drop1(F.max_pool2d(torch.relu(self.conv(x)), 2).flatten(1))
        return self.out(self.drop2(torch.relu(self.fc(x))))

    parts = {"conv": nn.Conv2d(1, 16, 3), "drop1": nn.Dropout(p), "fc": nn.Linear(144, 48), "drop2": nn.Dropout(p)}
    return made(module(forward, **parts, out=nn.Linear(48, 10)), x, y, adam(5e-3))


@fault
def layers_in_a_python_list(broken: bool) -> Training:
    """Linear layers are kept in a Python list, so that the optimizer gets those of the batch norm only."""
    x, y = data.circles()

    def forward(self, x):
        x = self.norm(self.layers[0](x)).relu()
        for layer in self.layers[1:-1]:
            x = layer(x).relu()
        return self.layers[-1](x)

    blocks = [nn.Linear(2, 16), *(nn.Linear(16, 16) for _ in range(2)), nn.Linear(16, 2)]
    layers = blocks if broken else nn.ModuleList(blocks)
    return made(module(forward, layers=layers, norm=nn.BatchNorm1d(16)), x, y, adam(5e-3))


@fault
def layer_created_in_forward(broken: bool) -> Training:
    """A recurrent network over the rows of digits makes a new output layer in every forward pass."""
    x, y = data.digits(256)

    def forward(self, x):
        head = nn.Linear(48, 10) if broken else self.head
        return head(self.rnn(x.squeeze(1))[0][:, -1])

    return made(module(forward, rnn=nn.RNN(8, 48, batch_first=True), head=nn.Linear(48, 10)), x, y, adam(1e-2))


@fault
def skip_connections_forgotten(broken: bool) -> Training:
    """Thirty residual blocks return their branch only."""
    x, y = data.digits(128)

    def forward(self, x):
        x = self.stem(x.flatten(1))
        for block in self.blocks:
            x = block(x) if broken else x + block(x)
        return self.head(x)

    stem = nn.Linear(64, 48)
    blocks = [nn.Sequential(nn.LayerNorm(48), nn.Linear(48, 48), nn.GELU(), nn.Linear(48, 48)) for _ in range(30)]
    return made(module(forward, stem=stem, blocks=nn.ModuleList(blocks), head=nn.Linear(48, 10)), x, y, adam(1e-3))


@fault
def layer_of_one_unit(broken: bool) -> Training:
    """A layer of a digit classifier has one unit."""
    x, y = data.digits(256)
    width = 1 if broken else 32

    def forward(self, x):
        return self.classifier(self.squeeze(self.features(x)).relu())

    features = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU())
    last = {"squeeze": nn.Linear(64, width), "classifier": nn.Linear(width, 10)}
    return made(module(forward, features=features, **last), x, y, adam(5e-3))


@fault
def graph_network_of_forty_layers(broken: bool) -> Training:
    """Forty rounds of averaging over neighbours make all nodes alike; two are enough."""
    nodes, adjacency, labels = data.communities()
    return made(GraphNet(40 if broken else 2), (nodes, adjacency), labels, adam(1e-2))


@fault
def batch_norm_momentum_of_tensorflow(broken: bool) -> Training:
    """The running statistics move by a thousandth per step: after a short training, evaluation uses initial ones."""
    x, y = data.digits(256)
    x = 3 * x - 1
    momentum = 0.001 if broken else 0.1

    def forward(self, x):
        x = self.bn1(self.conv1(x)).relu()
        x = F.avg_pool2d(self.bn2(self.conv2(x)).relu(), 2)
        return self.fc(x.flatten(1))

    model = module(
        forward,
        conv1=nn.Conv2d(1, 16, 3),
        bn1=nn.BatchNorm2d(16, momentum=momentum),
        conv2=nn.Conv2d(16, 16, 3),
        bn2=nn.BatchNorm2d(16, momentum=momentum),
        fc=nn.Linear(64, 10),
    )
    training = made(model, x, y, sgd(0.05), success=fitted(model, x, y, F.cross_entropy, 2.3026))
    train(training, 40)  # the fault shows in evaluation after some training
    training.optimizer.zero_grad()
    return training


@fault
def functional_dropout_in_evaluation(broken: bool) -> Training:
    """`F.dropout` is called without the network's mode: outputs are random in evaluation too."""
    x, y = data.digits(256)

    def forward(self, x):
        x = F.dropout(self.embed(x.flatten(1)).relu(), 0.5, training=broken or self.training)
        return self.classify(x)

    return made(module(forward, embed=nn.Linear(64, 24), classify=nn.Linear(24, 10)), x, y, adam(5e-3))


@fault
def pooled_before_the_convolutions(broken: bool) -> Training:
    """The image is averaged to one pixel before the first convolution."""
    x, y = data.digits(256)

    def forward(self, x):
        if broken:
            return self.fc(self.conv2(self.conv1(self.pool(x)).relu()).relu().flatten(1))
        return self.fc(self.pool(self.conv2(self.conv1(x).relu()).relu()).flatten(1))

    parts = {"conv1": nn.Conv2d(1, 16, 3, padding=1), "conv2": nn.Conv2d(16, 32, 3, padding=1)}
    parts |= {"pool": nn.AdaptiveAvgPool2d(1 if broken else 4), "fc": nn.Linear(32 if broken else 512, 10)}
    return made(module(forward, **parts), x, y, adam(5e-3))
