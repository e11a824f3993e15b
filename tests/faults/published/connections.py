"""Faults of connections: gradients that are cut, and values that are mixed between examples or time steps."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.faults import data
from tests.faults.catalogue import Training, fault
from tests.faults.training import accuracy, adam, binary_accuracy, made, module, outputs_in_eval, share_correct


@fault
def code_rounded_without_straight_through(broken: bool) -> Training:
    """The code of an autoencoder is rounded, and the gradient of rounding is zero."""
    x = data.digits(256)[0].flatten(1)

    def forward(self, x):
        code = 4 * self.encoder(x)
        rounded = torch.round(code)
        return self.decoder(rounded if broken else code + (rounded - code).detach())  # straight through

    encoder = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 6))
    decoder = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64))
    return made(module(forward, encoder=encoder, decoder=decoder), x, x, adam(3e-3))


@fault
def backbone_left_under_no_grad(broken: bool) -> Training:
    """The shared backbone of a Siamese network runs under `torch.no_grad()`, left over from feature extraction."""
    x, y = data.digits(512)
    same = torch.rand(256) < 0.5
    by_class = [torch.nonzero(y == label)[:, 0] for label in range(10)]
    partner = torch.stack(
        [by_class[int(label)][torch.randint(len(by_class[int(label)]), (1,))[0]] for label in y[:256]]
    )
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
    compare = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 1))
    model, inputs = module(forward, backbone=backbone, compare=compare), (x[:256], second)
    return made(model, inputs, labels, adam(5e-3), nn.BCEWithLogitsLoss(), binary_accuracy(model, inputs, labels))


@fault
def lstm_without_batch_first(broken: bool) -> Training:
    """An LSTM that takes (time, batch, features) gets (batch, time, features): it runs over the examples."""
    batches = [data.waves() for _ in range(11)]
    shuffled = [(x[order], y[order]) for x, y in batches for order in [torch.randperm(len(y))]]

    def forward(self, x):
        return self.fc(self.lstm(x)[0][:, -1])

    model = module(forward, lstm=nn.LSTM(1, 32, batch_first=not broken), fc=nn.Linear(32, 2))
    return made(model, *shuffled[0], adam(1e-2), success=accuracy(model, *shuffled[10]), stream=shuffled[:10])


@fault
def targets_flattened_in_other_order(broken: bool) -> Training:
    """Logits are flattened time-major, targets batch-major."""
    x, y = data.language(32, 20)

    def forward(self, tokens):
        hidden = self.gru(self.embedding(tokens))[0]
        logits = self.head(hidden)  # (N, T, V)
        if broken:
            return logits.transpose(0, 1).reshape(-1, 16)
        return logits.reshape(-1, 16)

    gru = {"embedding": nn.Embedding(16, 32), "gru": nn.GRU(32, 48, batch_first=True)}
    model = module(forward, **gru, head=nn.Linear(48, 16))

    def success() -> float:
        logits = outputs_in_eval(model, x)
        logits = logits.view(20, 32, 16).transpose(0, 1).reshape(-1, 16) if broken else logits
        return share_correct(logits.argmax(1), y.flatten())

    return made(model, x, y.flatten(), adam(1e-2), F.cross_entropy, success)


@fault
def hidden_state_read_after_padding(broken: bool) -> Training:
    """Sequences of 4 to 8 steps are padded to 80, and the state after the padding is classified."""
    lengths = torch.randint(4, 9, (192,))
    labels = torch.randint(0, 8, (192,))
    x = 0.3 * torch.randn(192, 80, 10)
    x[torch.arange(80)[None] >= lengths[:, None]] = 0
    x[torch.arange(192), lengths - 2, labels] += 2.0

    def forward(self, x, lengths):
        hidden = self.rnn(x)[0]
        last = hidden[:, -1] if broken else hidden[torch.arange(len(x)), lengths - 1]
        return self.out(last)

    model = module(forward, rnn=nn.RNN(10, 32, batch_first=True), out=nn.Linear(32, 8))
    return made(model, (x, lengths), labels, adam(3e-3))
