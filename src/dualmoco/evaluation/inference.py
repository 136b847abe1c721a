"""Natural language inference with the head a model was trained with (appendix B): accuracy on labelled pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from dualmoco.core.errors import DataError
from dualmoco.data.nli import read_nli
from dualmoco.evaluation.data_files import existing
from dualmoco.evaluation.score import MeanSample, Signer, data_sha256, interval
from dualmoco.evaluation.task import Result, Sentences
from dualmoco.models.model import Identity
from dualmoco.training.nli import load_classifier

BATCH = 4096


class Inference:
    """A file of premises, hypotheses and labels, judged by the classifier in a model's folder."""

    def __init__(self, path: Path, model: Path) -> None:
        self.path = existing(path, "labelled NLI pairs")
        self.classifier, self.lang = load_classifier(model)
        self.examples = list(read_nli(path))
        if not self.examples:
            raise DataError(f"{path}: no labelled examples; expected premise, hypothesis and label")

    def texts(self) -> Mapping[str, Sequence[str]]:
        """Premises and hypotheses."""
        return {self.lang: [text for example in self.examples for text in (example.premise, example.hypothesis)]}

    def score(self, sentences: Sentences, identity: Identity) -> Result:
        """Accuracy of the three labels."""
        premises = torch.from_numpy(sentences.vectors([example.premise for example in self.examples], self.lang))
        hypotheses = torch.from_numpy(sentences.vectors([example.hypothesis for example in self.examples], self.lang))
        if premises.shape[1] != self.classifier.dimension:
            raise DataError(
                f"vectors of dimension {premises.shape[1]} for a head of dimension {self.classifier.dimension}: "
                "no post-processing that cuts the dimension can be used with NLI"
            )
        with torch.inference_mode():
            batches = zip(premises.split(BATCH), hypotheses.split(BATCH), strict=True)
            found = torch.cat([self.classifier.compare(u, v).argmax(dim=1) for u, v in batches]).numpy()
        sample = MeanSample((found == np.array([example.label for example in self.examples])).astype(np.float64))
        signer, ends = Signer(identity, "nli", data_sha256([self.path])), interval(sample, 200)
        return Result([signer.score(self.path.name, "trained head", "accuracy", sample, len(found), ends)])
