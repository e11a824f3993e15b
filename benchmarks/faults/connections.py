"""Faults of connections: gradients that are cut, and values that are mixed between examples or time steps."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.faults import data, measures
from benchmarks.faults.case import Training, fault
from benchmarks.faults.sources import remembered, traincheck
from benchmarks.faults.truth import NO_GRADIENT, NOT_FITTED, both

_CUT = r"detach\w*|no_grad|graph|cut|stops?|block\w*|not reach\w*|disconnect\w*|" + NO_GRADIENT


class RoundedAutoencoder(nn.Module):
    def __init__(self, rounded: bool) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 6))
        self.decoder = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64))
        self.rounded = rounded

    def forward(self, x: Tensor) -> Tensor:
        code = 4 * self.encoder(x)
        rounded = torch.round(code)
        return self.decoder(rounded if self.rounded else code + (rounded - code).detach())  # straight through


@fault(
    "gradient",
    remembered("torch.round has zero gradient: quantized bottleneck without straight-through estimator"),
    both(
        r"round\w*|quanti[sz]\w*|straight.?through|piecewise|step function|gradients? (is|"
        r"are)?\s*(exactly )?zero|zero gradient|no gradient",
        r"encoder|round\w*|code",
    ),
    modules=("encoder", "encoder.0", "encoder.2"),
    symptom=NO_GRADIENT + "|" + NOT_FITTED,
    reaches=0.6,
    below=0.45,
)
def code_rounded_without_straight_through(broken: bool) -> Training:
    """The code of an autoencoder is rounded, and the gradient of rounding is zero."""
    x = data.digits(256)[0].flatten(1)
    model = RoundedAutoencoder(rounded=broken)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return Training(model, (x, x), nn.MSELoss(), optimizer, measures.r_squared(model, x, x))


class Siamese(nn.Module):
    def __init__(self, frozen: bool) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(144, 4)
        )
        self.compare = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 1))
        self.frozen = frozen

    def embed(self, image: Tensor) -> Tensor:
        if self.frozen:
            with torch.no_grad():
                return self.backbone(image)
        return self.backbone(image)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        return self.compare((self.embed(first) - self.embed(second)).abs()).squeeze(-1)


@fault(
    "gradient",
    traincheck("clean workload siamese-network, with a forgotten torch.no_grad()"),
    both(_CUT, r"backbone|gradient|parameters?"),
    modules=("backbone", "backbone.0", "backbone.4"),
    symptom=NO_GRADIENT + "|" + NOT_FITTED,
    reaches=0.75,
    below=0.6,
)
def backbone_left_under_no_grad(broken: bool) -> Training:
    """The shared backbone of a Siamese network runs under `torch.no_grad()`, left over from feature extraction."""
    x, y = data.digits(512)
    first, second = x[:256], x[256:]
    same = torch.rand(256) < 0.5
    by_class = [torch.nonzero(y == label)[:, 0] for label in range(10)]
    partner = torch.stack(
        [by_class[int(label)][torch.randint(len(by_class[int(label)]), (1,))[0]] for label in y[:256]]
    )
    second = torch.where(same[:, None, None, None], x[partner], second)
    labels = (y[:256] == torch.where(same, y[partner], y[256:])).float()
    model = Siamese(frozen=broken)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    success = measures.binary_accuracy(model, (first, second), labels)
    return Training(model, ((first, second), labels), nn.BCEWithLogitsLoss(), optimizer, success)


class WaveClassifier(nn.Module):
    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.lstm = nn.LSTM(1, 32, batch_first=batch_first)
        self.fc = nn.Linear(32, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.lstm(x)[0][:, -1])


@fault(
    "mixing",
    remembered("nn.LSTM without batch_first=True"),
    both(
        r"batch.?first|examples?|batch|mix\w*|axis|dimension|sequence",
        r"batch.?first|mix\w*|leak\w*|depends? on|other examples|across|transpos\w*|independent|"
        r"swap\w*|order|over the (examples|batch)",
    ),
    symptom=NOT_FITTED + "|eval|generali",
    reaches=0.9,
    below=0.6,
)
def lstm_without_batch_first(broken: bool) -> Training:
    """An LSTM that takes (time, batch, features) gets (batch, time, features): it runs over the examples."""
    batches = [data.waves() for _ in range(11)]
    shuffled = [(x[order], y[order]) for x, y in batches for order in [torch.randperm(len(y))]]
    model = WaveClassifier(batch_first=not broken)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    success = measures.accuracy(model, *shuffled[10])
    return Training(model, shuffled[0], nn.CrossEntropyLoss(), optimizer, success, lambda step: shuffled[step % 10])


class Tagger(nn.Module):
    def __init__(self, flat: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(16, 32)
        self.gru = nn.GRU(32, 48, batch_first=True)
        self.head = nn.Linear(48, 16)
        self.flat = flat

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.gru(self.embedding(tokens))[0]
        logits = self.head(hidden)  # (N, T, V)
        if self.flat:
            return logits.transpose(0, 1).reshape(-1, 16)
        return logits.reshape(-1, 16)


@fault(
    "mixing",
    remembered("word-language-model of pytorch/examples: outputs (T·N, V) against targets flattened as (N·T)"),
    both(
        r"order|transpos\w*|align\w*|reshap\w*|flatten\w*|label\w*|target\w*|permut\w*|axis|mix\w*|examples?",
        r"misalign\w*|mismatch\w*|scrambl\w*|do not (go|belong|match)|transpos\w*|mix\w*|swap\w*|"
        r"other|permut\w*|depends?|major",
    ),
    reaches=0.5,
    below=0.3,
)
def targets_flattened_in_other_order(broken: bool) -> Training:
    """Logits are flattened time-major, targets batch-major."""
    x, y = data.language(32, 20)
    model = Tagger(flat=broken)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def success() -> float:
        logits = measures.outputs_in_eval(model, x)
        logits = logits.view(20, 32, 16).transpose(0, 1).reshape(-1, 16) if broken else logits
        return measures.above_guess((logits.argmax(1) == y.flatten()).float().mean().item(), y)

    return Training(model, (x, y.flatten()), F.cross_entropy, optimizer, success)


class LongMemory(nn.Module):
    def __init__(self, padded: bool) -> None:
        super().__init__()
        self.rnn = nn.RNN(10, 32, batch_first=True)
        self.out = nn.Linear(32, 8)
        self.padded = padded

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        hidden = self.rnn(x)[0]
        last = hidden[:, -1] if self.padded else hidden[torch.arange(len(x)), lengths - 1]
        return self.out(last)


@fault(
    "mixing",
    remembered("the last step of a padded sequence is padding"),
    both(
        r"padd\w*|last (time )?step|time steps?|recurr\w*|memory|sequence|forget\w*|\brnn\b",
        r"padd\w*|vanish\w*|forget\w*|lengths?|shrink\w*|gradient",
    ),
    modules=(),
    symptom=NOT_FITTED + "|" + NO_GRADIENT,
    reaches=0.85,
    below=0.4,
    constant_outputs=True,
)
def hidden_state_read_after_padding(broken: bool) -> Training:
    """Sequences of 4 to 8 steps are padded to 80, and the state after the padding is classified."""
    lengths = torch.randint(4, 9, (192,))
    labels = torch.randint(0, 8, (192,))
    x = 0.3 * torch.randn(192, 80, 10)
    x[torch.arange(80)[None] >= lengths[:, None]] = 0
    x[torch.arange(192), lengths - 2, labels] += 2.0
    model = LongMemory(padded=broken)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    success = measures.accuracy(model, (x, lengths), labels)
    return Training(model, ((x, lengths), labels), nn.CrossEntropyLoss(), optimizer, success)
