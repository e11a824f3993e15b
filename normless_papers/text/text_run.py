"""What runs on text have in common: a vocabulary that is learned and stored, and Adam."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, TypeVar

from torch import nn
from torch.optim import Adam, AdamW, Optimizer

from normless.residual import ResidualMap
from normless_lab.train import Task, groups_of, saved_folder, versions_of
from normless_papers.text.config import AdamConfig
from normless_papers.text.text_sets import TextSets
from normless_papers.text.tokens import BytePairs

VOCABULARY_FILE = "vocabulary.json"

Config = TypeVar("Config", bound=AdamConfig)


class TextRun(Task[Config]):
    """A network on tokens, by Adam."""

    FILES: ClassVar[tuple[str, ...]] = (VOCABULARY_FILE,)

    vocabulary: BytePairs | None = None

    def byte_pairs(self, sentences: Iterable[str], size: int) -> BytePairs:
        """Return the byte pairs of a resumed run, or of the folder of a saved network, or else of some sentences."""
        folder = saved_folder(self.config.model)
        places = [] if folder is None else [folder / VOCABULARY_FILE]
        if self.directory is not None and not self.directory.starts_over:
            places.insert(0, self.directory.path / VOCABULARY_FILE)
            self.directory.check_intact(places[0])
        stored = next((BytePairs.load(path) for path in places if path.exists()), None)
        self.vocabulary = stored or BytePairs.train(sentences, size)
        return self.vocabulary

    def save_files(self) -> None:
        """Write the byte pairs, if there are any."""
        if self.vocabulary is not None:
            with self.directory.digests.replaced(self.directory.path / VOCABULARY_FILE) as part:
                self.vocabulary.save(part)

    def build_optimizer(self, network: nn.Module, structure: ResidualMap) -> Optimizer:
        """Build Adam on the groups of the decay policy; AdamW where the decay is decoupled."""
        config, kind = self.config, AdamW if self.config.decoupled_decay else Adam
        groups = groups_of(config, network, structure)
        return kind(groups, lr=config.rate, betas=(config.beta1, config.beta2), eps=config.epsilon, fused=True)

    def about(self, text: TextSets, vocabulary: int, *packages: str) -> dict[str, Any]:
        """Return the fields of the result that identify the text."""
        return {
            "vocabulary": vocabulary,
            "data_checksum": text.checksum,
            "seed": self.config.seed,
            "versions": versions_of("numpy", "tokenizers", *packages),
        }
