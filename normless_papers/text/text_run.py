"""What runs on text have in common: a vocabulary that is learned and stored, Adam, a network fitted to the data."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar, TypeVar

import torch
from torch import nn
from torch.optim import Adam, AdamW, Optimizer

from normless import schemes
from normless.conversion import convert
from normless.residual import ResidualMap
from normless_lab.train.result import versions_of
from normless_lab.train.task import Task, few, groups_of, load_saved, saved_folder
from normless_papers.text.byte_pairs import BytePairs
from normless_papers.text.config import AdamConfig
from normless_papers.text.text_sets import TextSets

VOCABULARY_FILE = "vocabulary.json"

Config = TypeVar("Config", bound=AdamConfig)


class TextRun(Task[Config]):
    """A network on tokens, by Adam."""

    FILES: ClassVar[tuple[str, ...]] = (VOCABULARY_FILE,)

    vocabulary: BytePairs | None = None

    def byte_pairs(self, sentences: Iterable[str], size: int) -> BytePairs:
        """The byte pairs of a resumed run, or those in the folder of a saved network, or else of some sentences."""
        own, folder = self.directory.path / VOCABULARY_FILE, saved_folder(self.config.model)
        places = [] if folder is None else [folder / VOCABULARY_FILE]
        if not self.directory.starts_over:
            self.directory.check_intact(own)
            places.insert(0, own)
        stored = next((BytePairs.load(path) for path in places if path.exists()), None)
        self.vocabulary = stored or BytePairs.train(sentences, size)
        return self.vocabulary

    def save_files(self) -> None:
        """Write the byte pairs, if there are any."""
        if self.vocabulary is not None:
            with self.directory.digests.replaced(self.directory.path / VOCABULARY_FILE) as part:
                self.vocabulary.save(part)

    def build_optimizer(self, network: nn.Module, structure: ResidualMap) -> Optimizer:
        """Adam on the groups of the decay policy; AdamW where the decay is decoupled."""
        config, kind = self.config, AdamW if self.config.decoupled_decay else Adam
        groups = groups_of(config, network, structure)
        return kind(groups, lr=config.rate, betas=(config.beta1, config.beta2), eps=config.epsilon, fused=True)

    @abstractmethod
    def original(self) -> nn.Module:
        """The network before its conversion, fitted to the data."""

    @abstractmethod
    def check(self, network: nn.Module, *, saved: bool) -> None:
        """Raise a ValueError if a network, perhaps a saved one, does not fit the data."""

    def build_network(self) -> nn.Module:
        """See `Task.build_network`."""
        config = self.config
        torch.manual_seed(config.seed)
        folder, scheme = saved_folder(config.model), schemes.scheme(config.scheme)
        network = self.original() if folder is None else load_saved(config, folder)
        self.check(network, saved=folder is not None)
        if folder is not None:
            return network
        inputs = self.example_inputs()
        return convert(network, scheme, *inputs, check_inputs=few(*inputs), in_place=True)

    def about(self, text: TextSets, vocabulary: int, *packages: str) -> dict[str, Any]:
        """The fields of the result that identify the text."""
        return {
            "vocabulary": vocabulary,
            "data_checksum": text.checksum,
            "seed": self.config.seed,
            "versions": versions_of("numpy", "tokenizers", *packages),
        }
