"""Reference networks, each written once, in its normalized form; schemes make every other form of it."""

from normless.models.dense import Dense as Dense
from normless.models.dense import dense as dense
from normless.models.resnet import ResNet as ResNet
from normless.models.resnet import resnet as resnet
from normless.models.resnet_cifar import ResNetCifar as ResNetCifar
from normless.models.resnet_cifar import resnet_cifar as resnet_cifar
from normless.models.resnet_v2 import ResNetV2 as ResNetV2
from normless.models.resnet_v2 import resnet_v2 as resnet_v2
from normless.models.transformer import Transformer as Transformer
from normless.models.transformer import transformer as transformer
from normless.models.wide_resnet import WideResNet as WideResNet
from normless.models.wide_resnet import wide_resnet as wide_resnet
