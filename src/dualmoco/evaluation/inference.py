"""Natural language inference with the head that the model was trained with (appendix B): accuracy on labelled pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from dualmoco.core.errors import DataError
from dualmoco.data.nli import read_nli
from dualmoco.evaluation.score import MeanSample, Signer, interval
from dualmoco.evaluation.task import Sentences, TaskResult, require_path
from dualmoco.models.model import Identity
from dualmoco.training.nli import load_classifier

NLI_ROWS = 4096  # pairs classified at once


class Inference:
    """A file of premises, hypotheses and labels, judged by the classifier in a model's folder."""

    def __init__(self, path: Path, model: Path) -> None:
        self.path = require_path(path, "labelled NLI pairs")
        self.classifier, self.lang = load_classifier(model)
        self.examples = list(read_nli(path))
        if not self.examples:
            raise DataError(f"{path}: no labelled examples; expected premise, hypothesis and label")

    def texts(self) -> Mapping[str, Sequence[str]]:
        """Premises and hypotheses."""
        return {self.lang: [text for example in self.examples for text in (example.premise, example.hypothesis)]}

    def score(self, sentences: Sentences, identity: Identity) -> TaskResult:
        """Accuracy over the three labels."""
        premises = torch.from_numpy(sentences.vectors([example.premise for example in self.examples], self.lang))
        hypotheses = torch.from_numpy(sentences.vectors([example.hypothesis for example in self.examples], self.lang))
        if premises.shape[1] != self.classifier.dimension:
            raise DataError(
                f"vectors of dimension {premises.shape[1]} for an NLI head of dimension {self.classifier.dimension}: "
                "use no post-processing that changes the dimension"
            )
        with torch.inference_mode():
            batches = zip(premises.split(NLI_ROWS), hypotheses.split(NLI_ROWS), strict=True)
            found = torch.cat([self.classifier.compare(u, v).argmax(dim=1) for u, v in batches]).numpy()
        sample = MeanSample((found == np.array([example.label for example in self.examples])).astype(np.float64))
        signer, ends = Signer(identity, "nli", [self.path]), interval(sample, 200)
        return TaskResult([signer.score(self.path.name, "trained head", "accuracy", sample, len(found), ends)])
