"""Refusals of `diagnose`, and of the catalogue of faults by which it is scored."""

import torch
from torch import nn

import normless as nl
from errors.wrong import Wrong
from tests.faults.catalogue import catalogue
from tests.faults.diagnosers import diagnoser_of

LAZY, BATCH = nn.Sequential(nn.LazyLinear(3)), (torch.zeros(24, 8), torch.arange(24) % 3)

ERRORS = [
    Wrong("diagnose, lazy", lambda: nl.diagnose(LAZY, BATCH), nl.errors.InputsError, "call it on a batch"),
    Wrong("faults, name", lambda: catalogue(names=["no_such_case"]), ValueError, "no_such_case", "rate_too_low"),
    Wrong("faults, diagnoser", lambda: diagnoser_of("nobody"), ValueError, "nobody", "module:function"),
]
