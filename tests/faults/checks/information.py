"""Information that never reaches the output: narrow layers, unread inputs, no order, and gradients through time."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.faults.checks.rows import adam, check, given, layers, numbers
from tests.faults.training import module


def _narrow(width):
    torch.manual_seed(0)
    parts = [nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, width), nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, 6)]
    return given(nn.Sequential(*parts), *numbers())


def _gated():
    """A gate of one unit that is not the only path."""
    torch.manual_seed(0)

    def forward(self, x):
        h = F.relu(self.body(x))
        return self.head(h * self.gate(h).sigmoid())

    return given(module(forward, body=nn.Linear(12, 32), gate=nn.Linear(32, 1), head=nn.Linear(32, 6)), *numbers())


check("one_hidden_unit", "one_unit", lambda: _narrow(1), lambda: _narrow(16), r"where=\('2',\)")
check("gate_of_one_unit", "", _gated)


def _reader(positions, attends=True, ordered=True):
    """A transformer, or a mean of embeddings; targets depend on the first token, or on their sum."""
    torch.manual_seed(0)
    half = torch.randint(0, 9, (32, 6))
    tokens = torch.cat([half, half.flip(1)])
    torch.manual_seed(0)

    def forward(self, tokens):
        return self.head(self.body(self.embed(tokens) + self.positions).mean(1))

    embed, head = nn.Embedding(9, 32), nn.Linear(32, 3)
    places = nn.Parameter(torch.randn(1, 6, 32) * positions)
    layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True)
    body = nn.TransformerEncoder(layer, 1) if attends else nn.Identity()
    model = module(forward, embed=embed, head=head, positions=places, body=body)
    return given(model, tokens, tokens[:, 0] % 3 if ordered else tokens.sum(1) % 3)


# Without a nonlinear function between them, the mean removes the positions.
check("tokens_without_positions", "unordered", lambda: _reader(False), lambda: _reader(True))
check("mean_of_embeddings", "unordered", lambda: _reader(False, False))
check("mean_of_embeddings_and_positions", "unordered", lambda: _reader(True, False))
check("sum_of_tokens_without_positions", "", lambda: _reader(False, ordered=False))


def _padded(positions, longest, examples=24):
    source = torch.Generator().manual_seed(0)
    ids = torch.randint(1, 12, (examples, positions), generator=source)
    lengths = torch.randint(3, longest, (examples,), generator=source)
    ids[torch.arange(positions) >= lengths[:, None]] = 0
    return ids, lengths


def _last(way, positions=50, longest=8):
    """A recurrence that reads the last step of the batch, of each sequence, or packs the sequences."""
    torch.manual_seed(0)

    def forward(self, ids, lengths):
        if way == "packed":
            packed = nn.utils.rnn.pack_padded_sequence(self.embed(ids), lengths, True, enforce_sorted=False)
            return self.head(self.layer(packed)[1][-1])
        states = self.layer(self.embed(ids))[0]
        return self.head(states[:, -1] if way == "last" else states[torch.arange(len(ids)), lengths - 1])

    gru = {"embed": nn.Embedding(12, 16), "layer": nn.GRU(16, 16, batch_first=True)}
    return given(module(forward, **gru, head=nn.Linear(16, 3)), _padded(positions, longest), torch.arange(24) % 3)


check("last_step_of_padding", "read_after_padding", lambda: _last("last"), lambda: _last("own"))
check("packed_sequences_of_padding", "", lambda: _last("packed"))
check("little_padding", "", lambda: _last("last", 9, 9))


def _pooled(along):
    """Attention of one query over the elements of a sequence, with a mask along keys or queries."""
    torch.manual_seed(0)

    def forward(self, x, valid):
        h = F.relu(self.embed(x))
        scores = (h + self.query) @ h.transpose(1, 2) / 4
        weights = scores.masked_fill(~(valid[:, None] if along == "keys" else valid[..., None]), -1e9).softmax(-1)
        return self.head((weights @ h)[:, 0])

    embed, query = nn.Linear(5, 16), nn.Parameter(torch.randn(16))
    model = module(forward, embed=embed, query=query, head=nn.Linear(16, 3))
    source = torch.Generator().manual_seed(0)
    x = torch.randn(24, 9, 5, generator=source)
    return given(model, (x, torch.arange(9) < torch.randint(2, 9, (24, 1), generator=source)), torch.arange(24) % 3)


check("mask_of_queries", "padding_read", lambda: _pooled("queries"), lambda: _pooled("keys"))


def _summary(inverted):
    """A summary token that attends to tokens; torch's padding masks are True at positions to be ignored."""
    torch.manual_seed(0)

    def forward(self, ids):
        query, h = self.token.expand(len(ids), 1, -1), self.embed(ids)
        mask = ids != 0 if inverted else ids == 0
        return self.head(self.attention(query, h, h, key_padding_mask=mask)[0][:, 0])

    embed, token = nn.Embedding(12, 16), nn.Parameter(torch.randn(16))
    attention = nn.MultiheadAttention(16, 2, batch_first=True)
    model = module(forward, embed=embed, token=token, head=nn.Linear(16, 3), attention=attention)
    return given(model, _padded(12, 10)[0], torch.arange(24) % 3)


check("inverted_padding_mask_of_torch", "inverted_mask", lambda: _summary(True), lambda: _summary(False))


def _two(second):
    """A network of two arguments, with the second used, thrown away, or never read."""
    torch.manual_seed(0)

    def forward(self, x, z):
        h = self.first(x)
        if second != "never read":
            memory = self.other(z)
            h = h + memory * (second == "used")
        return self.head(F.relu(h))

    model = module(forward, first=nn.Linear(6, 16), other=nn.Linear(4, 16), head=nn.Linear(16, 3))
    source = torch.Generator().manual_seed(0)
    inputs = torch.randn(24, 6, generator=source), torch.randn(24, 4, generator=source)
    return given(model, inputs, torch.arange(24) % 3)


check("argument_thrown_away", "discarded_input", lambda: _two("discarded"), lambda: _two("used"))
check("argument_never_read", "", lambda: _two("never read"))


def _triplets(is_equal):
    torch.manual_seed(0)

    def forward(self, anchor, positive, negative):
        return self.body(anchor), self.body(positive), self.body(negative)

    model = module(forward, body=layers(8, 32, 8))
    torch.manual_seed(2)
    anchor = torch.randn(32, 8)
    positive, negative = anchor + 0.1 * torch.randn(32, 8), torch.randn(32, 8)
    batch = anchor, positive, positive.clone() if is_equal else negative
    return given(model, batch, torch.zeros(32), lambda o, _: F.triplet_margin_loss(*o), adam(), trial_steps=20)


check("negatives_that_are_positives", "equal_inputs", lambda: _triplets(True), lambda: _triplets(False))


def _both():
    """Equal inputs of a network that trains."""
    torch.manual_seed(0)
    x = torch.randn(32, 8)

    def forward(self, first, second):
        return self.body(torch.cat([first, second], 1))

    model = module(forward, body=layers(16, 64, 4))
    return given(model, (x, x.clone()), torch.arange(32) % 4, optimizer=adam(), trial_steps=20)


check("equal_inputs_that_train", "", _both)


def _operated(function, **options):
    """Three layers, with a function before the last one."""
    torch.manual_seed(0)

    def forward(self, x):
        h = F.relu(self.second(F.relu(self.first(x))))
        return self.last(function(h))

    model = module(forward, first=nn.Linear(12, 64), second=nn.Linear(64, 64), last=nn.Linear(64, 4))
    return given(model, *numbers(32, 12, 4), optimizer=adam(), trial_steps=20, **options)


check(
    "values_of_a_ten_millionth",
    "prevented_by_operation",
    lambda: _operated(lambda x: 1e-7 * x),
    lambda: _operated(lambda x: 0.1 * x),
    "mul.*information.py.*where=..forward",
)


def _masked(seen):
    """One attention with an additive mask that leaves the positions from the first up to `seen`."""
    torch.manual_seed(0)

    def forward(self, x):
        query, key, value = self.mixing(self.tokens(x) + self.places).chunk(3, -1)
        weights = (query @ key.transpose(1, 2) / 32**0.5 + self.mask).softmax(-1)
        return self.last((weights @ value)[:, -1])

    tokens, places = nn.Embedding(20, 32), nn.Parameter(0.1 * torch.randn(8, 32))
    model = module(forward, tokens=tokens, places=places, mixing=nn.Linear(32, 96), last=nn.Linear(32, 4))
    model.register_buffer("mask", torch.zeros(8, 8).masked_fill(torch.arange(8) >= seen, -1e9))
    torch.manual_seed(3)
    x = torch.randint(0, 20, (32, 8))
    x[:, 0] = 1
    return given(model, x, torch.arange(32) % 4, optimizer=adam(), trial_steps=20)


check("mask_of_all_but_one", "prevented_by_operation", lambda: _masked(1), lambda: _masked(8), "mask")
