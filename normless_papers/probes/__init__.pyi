from .channels import (
    ChannelContributions as ChannelContributions,
    ChannelGradients as ChannelGradients,
    ChannelPairs as ChannelPairs,
)
from .class_gradients import LogitGradientMatrix as LogitGradientMatrix
from .histograms import (
    ActivationHistograms as ActivationHistograms,
    OutputGradientHistograms as OutputGradientHistograms,
    ParameterGradientHistograms as ParameterGradientHistograms,
)
from .stream import ExampleCovariance as ExampleCovariance, StreamVariance as StreamVariance
from .summand_tables import (
    GradientSums as GradientSums,
    ParameterGradients as ParameterGradients,
    SummandDistribution as SummandDistribution,
)
from .training_signals import GradientCorrelation as GradientCorrelation, WeightDynamics as WeightDynamics
