"""Losses of users, which are not in the registry."""

from __future__ import annotations

from torch import nn

from st_contrastive import SimCSELoss


class Shrinking(nn.Module):
    """A plain module that is independent of this package."""

    def __init__(self, model, factor=0.5):
        super().__init__()
        self.model, self.factor = model, factor

    def forward(self, sentence_features, labels=None):
        return self.factor * self.model(sentence_features[0])["sentence_embedding"].norm(dim=1).mean()


class Passing(SimCSELoss):
    """Passes other arguments to its base class."""

    def __init__(self, model, bias=0.5, **options):
        super().__init__(model, **options)
        self.bias = bias


class Seeded(SimCSELoss):
    """Has an argument with the name of a Trainer's argument."""

    def __init__(self, model, seed=0):
        super().__init__(model)
