"""Faults of the structure: missing or excessive parts, gradients that are cut, and values that are mixed."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.faults import data
from tests.faults.catalogue import Training, fault, row
from tests.faults.networks import GraphNet, mlp
from tests.faults.training import (
    accuracy,
    adam,
    binary_accuracy,
    fit,
    fitted,
    made,
    module,
    outputs_in_eval,
    sgd,
    share_correct,
    train,
)

row(
    "no_activation_between_layers",
    "A disk inside a ring is to be separated by a network without activations.",
    lambda broken: fit(data.circles(), mlp(2, 32, 32, 2, act=nn.Identity if broken else nn.ReLU), adam(1e-2)),
)


@fault
def keep_probability_as_dropout(broken: bool) -> Training:
    """Dropout of 0.97 where a keep probability of 0.97 was meant."""
    p = 0.97 if broken else 0.03

    def forward(self, x):
        x = self.drop1(F.max_pool2d(torch.relu(self.conv(x)), 2).flatten(1))
        return self.out(self.drop2(torch.relu(self.fc(x))))

    parts = {"conv": nn.Conv2d(1, 16, 3), "drop1": nn.Dropout(p), "fc": nn.Linear(144, 48), "drop2": nn.Dropout(p)}
    return made(module(forward, **parts, out=(48, 10)), *data.digits(256), adam(5e-3))


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

    def forward(self, x):
        head = nn.Linear(48, 10) if broken else self.head
        return head(self.rnn(x.squeeze(1))[0][:, -1])

    model = module(forward, rnn=nn.RNN(8, 48, batch_first=True), head=(48, 10))
    return made(model, *data.digits(256), adam(1e-2))


@fault
def skip_connections_forgotten(broken: bool) -> Training:
    """Thirty residual blocks return their branch only."""

    def forward(self, x):
        x = self.stem(x.flatten(1))
        for block in self.blocks:
            x = block(x) if broken else x + block(x)
        return self.head(x)

    stem = nn.Linear(64, 48)
    blocks = [nn.Sequential(nn.LayerNorm(48), *mlp(48, 48, 48, act=nn.GELU)) for _ in range(30)]
    return made(
        module(forward, stem=stem, blocks=nn.ModuleList(blocks), head=(48, 10)), *data.digits(128), adam(1e-3)
    )


@fault
def layer_of_one_unit(broken: bool) -> Training:
    """A layer of a digit classifier has one unit."""
    width = 1 if broken else 32
    forward = lambda self, x: self.classifier(self.squeeze(self.features(x)).relu())  # noqa: E731
    features = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU())
    model = module(forward, features=features, squeeze=(64, width), classifier=(width, 10))
    return made(model, *data.digits(256), adam(5e-3))


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

    def forward(self, x):
        x = self.bn1(self.conv1(x)).relu()
        x = F.avg_pool2d(self.bn2(self.conv2(x)).relu(), 2)
        return self.fc(x.flatten(1))

    norms = [nn.BatchNorm2d(16, momentum=0.001 if broken else 0.1) for _ in range(2)]
    parts = {"conv1": nn.Conv2d(1, 16, 3), "bn1": norms[0], "conv2": nn.Conv2d(16, 16, 3), "bn2": norms[1]}
    model = module(forward, **parts, fc=(64, 10))
    training = made(model, x, y, sgd(0.05), success=fitted(model, x, y, F.cross_entropy, 2.3026))
    train(training, 40)  # the fault shows in evaluation after some training
    training.optimizer.zero_grad()
    return training


@fault
def functional_dropout_in_evaluation(broken: bool) -> Training:
    """`F.dropout` is called without the network's mode: outputs are random in evaluation too."""

    def forward(self, x):
        x = F.dropout(self.embed(x.flatten(1)).relu(), 0.5, training=broken or self.training)
        return self.classify(x)

    return made(module(forward, embed=(64, 24), classify=(24, 10)), *data.digits(256), adam(5e-3))


@fault
def pooled_before_the_convolutions(broken: bool) -> Training:
    """The image is averaged to one pixel before the first convolution."""

    def forward(self, x):
        if broken:
            return self.fc(self.conv2(self.conv1(self.pool(x)).relu()).relu().flatten(1))
        return self.fc(self.pool(self.conv2(self.conv1(x).relu()).relu()).flatten(1))

    parts = {"conv1": nn.Conv2d(1, 16, 3, padding=1), "conv2": nn.Conv2d(16, 32, 3, padding=1)}
    pool = nn.AdaptiveAvgPool2d(1 if broken else 4)
    model = module(forward, **parts, pool=pool, fc=(32 if broken else 512, 10))
    return made(model, *data.digits(256), adam(5e-3))


@fault
def code_rounded_without_straight_through(broken: bool) -> Training:
    """The code of an autoencoder is rounded, and the gradient of rounding is zero."""
    x = data.digits(256)[0].flatten(1)

    def forward(self, x):
        code = 4 * self.encoder(x)
        rounded = torch.round(code)
        return self.decoder(rounded if broken else code + (rounded - code).detach())  # straight through

    return made(module(forward, encoder=mlp(64, 64, 6), decoder=mlp(6, 64, 64)), x, x, adam(3e-3))


@fault
def backbone_left_under_no_grad(broken: bool) -> Training:
    """The shared backbone of a Siamese network runs under `torch.no_grad()`, left over from feature extraction."""
    x, y = data.digits(512)
    same = torch.rand(256) < 0.5
    by_class = [torch.nonzero(y == label)[:, 0] for label in range(10)]
    partner = torch.stack([of[torch.randint(len(of), (1,))[0]] for of in (by_class[label] for label in y[:256])])
    second = torch.where(same[:, None, None, None], x[partner], x[256:])
    labels = (y[:256] == torch.where(same, y[partner], y[256:])).float()

    def embed(self, image):
        if broken:
            with torch.no_grad():
                return self.backbone(image)
        return self.backbone(image)

    def forward(self, first, second):
        return self.compare((embed(self, first) - embed(self, second)).abs()).squeeze(-1)

    backbone = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(144, 4))
    model, inputs = module(forward, backbone=backbone, compare=mlp(4, 32, 1)), (x[:256], second)
    return made(model, inputs, labels, adam(5e-3), nn.BCEWithLogitsLoss(), binary_accuracy(model, inputs, labels))


@fault
def lstm_without_batch_first(broken: bool) -> Training:
    """An LSTM that takes (time, batch, features) gets (batch, time, features): it runs over the examples."""
    batches = [data.waves() for _ in range(11)]
    shuffled = [(x[order], y[order]) for x, y in batches for order in [torch.randperm(len(y))]]
    lstm = nn.LSTM(1, 32, batch_first=not broken)
    model = module(lambda self, x: self.fc(self.lstm(x)[0][:, -1]), lstm=lstm, fc=(32, 2))
    return made(model, *shuffled[0], adam(1e-2), success=accuracy(model, *shuffled[10]), stream=shuffled[:10])


@fault
def targets_flattened_in_other_order(broken: bool) -> Training:
    """Logits are flattened time-major, targets batch-major."""
    x, y = data.language(32, 20)

    def forward(self, tokens):
        logits = self.head(self.gru(self.embedding(tokens))[0])  # (N, T, V)
        return (logits.transpose(0, 1) if broken else logits).reshape(-1, 16)

    gru = {"embedding": nn.Embedding(16, 32), "gru": nn.GRU(32, 48, batch_first=True)}
    model = module(forward, **gru, head=(48, 16))

    def success() -> float:
        logits = outputs_in_eval(model, x)
        logits = logits.view(20, 32, 16).transpose(0, 1).reshape(-1, 16) if broken else logits
        return share_correct(logits.argmax(1), y.flatten())

    return made(model, x, y.flatten(), adam(1e-2), F.cross_entropy, success)


@fault
def hidden_state_read_after_padding(broken: bool) -> Training:
    """Sequences of 4 to 8 steps are padded to 80, and the state after the padding is classified."""
    lengths, labels = torch.randint(4, 9, (192,)), torch.randint(0, 8, (192,))
    x = 0.3 * torch.randn(192, 80, 10)
    x[torch.arange(80)[None] >= lengths[:, None]] = 0
    x[torch.arange(192), lengths - 2, labels] += 2.0

    def forward(self, x, lengths):
        hidden = self.rnn(x)[0]
        return self.out(hidden[:, -1] if broken else hidden[torch.arange(len(x)), lengths - 1])

    model = module(forward, rnn=nn.RNN(10, 32, batch_first=True), out=(32, 8))
    return made(model, (x, lengths), labels, adam(3e-3))
