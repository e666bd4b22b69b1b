"""What no loss is built with is named before training."""

from __future__ import annotations

import math

import pytest

from st_contrastive import (
    AuxiliaryMLMPretrainingLoss,
    ConIsILoss,
    DiffCSELoss,
    InfoCSELoss,
    MomentumContrastLoss,
    SimCSELoss,
    TwinsLoss,
)

#: Of each loss, values that an argument does not take: the first argument of each is the one that is named.
BAD = {
    SimCSELoss: [
        {"temperature": 0}, {"temperature": "warm"}, {"temperature": math.inf}, {"head": True}, {"head": "relu"},
        {"mini_batch_size": 0}, {"mini_batch_size": 1.5}, {"mini_batch_size": True}, {"gather_across_devices": 1},
        {"mlm_weight": "a little"}, {"mask_rate": 15},
    ],
    ConIsILoss: [
        {"strategy": "both"}, {"interaction_weight": 1.2}, {"replacement_rate": -1}, {"unreplaced": "random"},
        {"interaction_dim": 0},
    ],
    TwinsLoss: [
        {"fusion_rate": 2}, {"queue_batches": -1}, {"forgetting_rate": 0.25, "queue_batches": 4},
        {"forgetting_rate": None}, {"train_pooling": "middle"}, {"fraternal": "german"}, {"identical_weight": -1},
        {"fraternal_weight": "1"}, {"twins_weight": math.nan}, {"margin_from": "words"}, {"freeze_embeddings": "no"},
        {"unpaired_tokens": "half"}, {"key_momentum": 1}, {"key_momentum": 0.5, "queue_batches": 0},
        {"identical_weight": 0, "fraternal_weight": 0, "twins_weight": 0},
    ],
    MomentumContrastLoss: [
        {"momentum": 1.0}, {"queue_size": 1.5}, {"positives": "mine"},
    ],
    InfoCSELoss: [
        {"mlm_weight": -1e-05}, {"mask_rate": 0}, {"split_layer": 9}, {"masked_views": "all"},
        {"auxiliary": "model.pt"}, {"auxiliary": 3}, {"auxiliary": ""}, {"rtd_weight": math.nan},
        {"contrastive_weight": "all"}, {"contrastive_weight": 0, "mlm_weight": 0},
        {"detach": 0}, {"tied_head": "own"}, {"lower_dropout": None},
    ],
    DiffCSELoss: [
        {"rtd_weight": -1}, {"mask_rate": 2}, {"generator": 3},
    ],
    AuxiliaryMLMPretrainingLoss: [
        {"mask_rate": 2}, {"auxiliary_weight": 0}, {"tied_head": 1},
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("loss_class", "options"), [(loss_class, options) for loss_class, each in BAD.items() for options in each], ids=str
)
def test_bad_arguments_are_named_before_training(build, loss_class, options):
    model = build()
    with pytest.raises((ValueError, TypeError, OSError), match=next(iter(options))):
        loss_class(model, **options)
    assert all(parameter.requires_grad for parameter in model.parameters())  # what fails changes nothing


UNREAD = [
    (SimCSELoss, {"mask_rate": 0.3}), (ConIsILoss, {"replacement_rate": 0.3}),
    (ConIsILoss, {"strategy": "given", "interaction_weight": 0}), (DiffCSELoss, {"mask_rate": 0.2, "rtd_weight": 0}),
    (TwinsLoss, {"forgetting_rate": 0.1, "queue_batches": 0}), (InfoCSELoss, {"split_layer": 1, "mlm_weight": 0}),
]  # fmt: skip


@pytest.mark.parametrize(("loss_class", "options"), UNREAD, ids=str)
def test_an_argument_without_effect_gives_a_warning(build, loss_class, options):
    with pytest.warns(UserWarning, match=f"^{next(iter(options))}=.* has no effect while "):
        loss_class(build(), **options)


def test_arguments_with_effect_give_no_warning(build):
    model = build("bert-mlm")  # a warning is an error here
    SimCSELoss(model, mlm_weight=0.1, mask_rate=0.3)
    ConIsILoss(model, strategy="subword", replacement_rate=0.3)
    InfoCSELoss(model, split_layer=1)
    assert all({*each.only_used_with} <= {*each(model).get_config_dict()} for each in BAD)
