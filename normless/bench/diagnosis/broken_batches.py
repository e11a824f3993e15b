"""Cases whose fault is in the batch or in what the loss is given."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normless.bench.diagnosis.cases import Patient, adamw, case, sgd
from normless.bench.diagnosis.networks import (
    RecurrentNet,
    ResidualNet,
    SentenceNet,
    convolutions,
    exclusive_or,
    images,
    mlp,
    sentences,
    vectors,
)


@case("not_finite_inputs")
def nan_pixel() -> Patient:
    """A pixel that a division by zero made NaN."""
    x, y = images()
    x[3, 0, 2, 2] = float("nan")
    return Patient(net := ResidualNet(), (x, y), sgd(net))


@case("not_finite_inputs", aside=True)
def infinite_feature() -> Patient:
    """The logarithm of a zero in a table."""
    x, y = vectors()
    x[5, 1] = -float("inf")
    return Patient(mlp([8, 32, 3]), (x, y))


@case("constant_inputs")
def black_images() -> Patient:
    """Images that were decoded to zeros."""
    x, y = images()
    return Patient(net := ResidualNet(), (torch.zeros_like(x), y), sgd(net))


@case("constant_inputs", aside=True)
def one_image_repeated() -> Patient:
    """A loader that returns the same example at every index."""
    x, y = images()
    return Patient(convolutions(3), (x[:1].repeat(len(x), 1, 1, 1), y))


@case("unscaled_inputs")
def bytes_as_floats() -> Patient:
    """Images of 0 to 255, without norms."""
    x, y = images()
    x = ((x - x.min()) / (x.max() - x.min()) * 255).round()
    return Patient(net := convolutions(4, norm=False), (x, y), sgd(net, 0.1))


@case("unscaled_inputs", aside=True)
def unscaled_table() -> Patient:
    """Columns in the units of the data, some in thousands."""
    x, y = vectors()
    x = x * torch.tensor([1, 1, 10, 100, 1e3, 1e4, 1, 0.01]) + torch.tensor([0, 0, 50, 0, 4e3, 9e4, 0, 1])
    return Patient(net := mlp([8, 64, 64, 3]), (x, y), sgd(net, 0.1))


@case("integer_inputs")
def uint8_images() -> Patient:
    """Images as they were read."""
    x, y = images()
    return Patient(ResidualNet(), (((x - x.min()) * 60).to(torch.uint8), y))


@case("integer_inputs", aside=True)
def integer_table() -> Patient:
    """Counts, not converted to floats."""
    x, y = vectors()
    return Patient(mlp([8, 32, 3]), ((x * 4).long(), y))


@case("one_label")
def sorted_data() -> Patient:
    """Examples in the order of their classes, not shuffled."""
    x, y = images(256)
    threes = y == y[0]
    return Patient(net := ResidualNet(), (x[threes], y[threes]), sgd(net))


@case("one_label", aside=True)
def labels_lost() -> Patient:
    """Labels that a join replaced by 0."""
    tokens, y = sentences()
    return Patient(SentenceNet(), (tokens, torch.zeros_like(y)))


@case("labels_out_of_range")
def labels_from_one() -> Patient:
    """Classes 1 to 10 for 10 logits."""
    x, y = images()
    return Patient(ResidualNet(), (x, y + 1))


@case("labels_out_of_range", aside=True)
def labels_minus_one() -> Patient:
    """Classes -1 and 1 of another library's loss."""
    x, y = exclusive_or()
    return Patient(mlp([2, 32, 2]), (x, 2 * y - 1))


@case("label_type")
def float_labels() -> Patient:
    """Classes as floats, as a data frame returns them."""
    x, y = images()
    return Patient(ResidualNet(), (x, y.float()))


@case("label_type", aside=True)
def short_labels() -> Patient:
    """Classes as 32-bit integers."""
    tokens, y = sentences()
    return Patient(RecurrentNet(), (tokens, y.int()))


@case("label_shape")
def column_of_labels() -> Patient:
    """Classes (N, 1)."""
    x, y = vectors()
    return Patient(mlp([8, 32, 3]), (x, y[:, None]))


@case("label_shape", aside=True)
def broadcast_targets() -> Patient:
    """A regression on (N,) with outputs (N, 1): the difference is (N, N)."""
    x, _ = vectors()
    return Patient(net := mlp([8, 64, 1]), (x, x[:, 0] * x[:, 1]), adamw(net, 1e-2), F.mse_loss)


@case("label_shape")
def one_hot_columns() -> Patient:
    """Classes (N,) shifted to one example fewer than the inputs."""
    x, y = images()
    return Patient(ResidualNet(), (x, y[1:]))


@case("softmax_before_loss")
def softmax_output() -> Patient:
    """Probabilities, given to a loss that takes logits."""
    x, y = images()
    net = nn.Sequential(ResidualNet(), nn.Softmax(1))
    return Patient(net, (x, y), sgd(net))


@case("softmax_before_loss", aside=True)
def functional_softmax() -> Patient:
    """The same in forward code of a transformer."""

    class Net(SentenceNet):
        def forward(self, tokens: Tensor) -> Tensor:
            return super().forward(tokens).softmax(-1)

    return Patient(Net(), sentences())


@case("activation_after_classifier", "softmax_before_loss")
def sigmoid_output() -> Patient:
    """Ten sigmoids, given to a cross-entropy."""
    x, y = images()
    net = nn.Sequential(convolutions(3), nn.Sigmoid())
    return Patient(net, (x, y), sgd(net))


@case("activation_after_classifier")
def relu_output() -> Patient:
    """A ReLU after every layer, the last included."""
    x, y = images()
    net = nn.Sequential(mlp([64, 64, 64, 10]), nn.ReLU())
    return Patient(net, (x, y), sgd(net))


@case("activation_after_classifier", aside=True)
def tanh_output() -> Patient:
    """Logits between -1 and 1."""

    class Net(ResidualNet):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).tanh()

    net = Net()
    return Patient(net, images(), adamw(net))


@case("activation_after_classifier")
def relu_regression() -> Patient:
    """A regression on values of both signs, that ends in a ReLU."""
    x, _ = vectors()
    net = nn.Sequential(mlp([8, 64, 1]), nn.ReLU())
    return Patient(net, (x, x[:, :1] - 1), adamw(net, 1e-2), F.mse_loss)


@case("dominant_class", "dominating_bias")
def large_bias() -> Patient:
    """A classifier that starts with a bias of 50 for one class."""
    net = ResidualNet()
    with torch.no_grad():
        net.fc.bias[0] = 50.0
    return Patient(net, images())


@case("dominant_class", "dominating_bias", aside=True)
def large_biases() -> Patient:
    """Biases drawn from N(0, 30²)."""
    net = SentenceNet()
    nn.init.normal_(net.head.bias, std=30.0)
    return Patient(net, sentences(), adamw(net))


@case("input_independent_outputs")
def mean_over_batch() -> Patient:
    """Features averaged over the batch, then repeated."""

    class Net(ResidualNet):
        def features(self, x: Tensor) -> Tensor:
            return super().features(x).mean(0, keepdim=True).expand(len(x), -1)

    net = Net()
    return Patient(net, images(), sgd(net))


@case("input_independent_outputs", "zero_weights", aside=True)
def zero_layer() -> Patient:
    """A hidden layer of zeros: no information passes, and no gradient."""
    net = mlp([64, 64, 64, 10])
    hidden = net[3]
    assert isinstance(hidden, nn.Linear)
    nn.init.zeros_(hidden.weight)
    nn.init.zeros_(hidden.bias)
    return Patient(net, images(), sgd(net))


@case("zero_weights", "input_independent_outputs")
def zeros_everywhere() -> Patient:
    """All weights and biases start at zero."""
    net = mlp([64, 64, 64, 10])
    for parameter in net.parameters():
        nn.init.zeros_(parameter)
    return Patient(net, images(), sgd(net))
