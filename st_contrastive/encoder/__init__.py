"""Everything that is done with the user's model.

The losses need more of a SentenceTransformer than ``model(features)``: facts about it, several views of a batch in one
pass, groups of rows, single layers, copies. How to do that depends on the model's family, on its wrappers and on
semi-private parts of sentence-transformers and transformers. This package keeps all of it in one place: the losses
give it sentences and get vectors.
"""

from st_contrastive.encoder.model import (
    POOLING_MODES,
    begins_with_special_token,
    dropout_setting,
    embedding_width,
    embeds_first_token,
    encoder_of,
    has_dropout,
    input_embedding_width,
    is_saved_model,
    max_positions,
    position_table,
    settings_of,
    text_module,
    token_width,
    tokenizer_of,
    unwrap,
    vocabulary_size,
    wrapper_chain,
)
from st_contrastive.encoder.passes import Encoded, EncoderPasses, encode, encode_with, pool, pool_as_model
from st_contrastive.encoder.probe import is_causal, modes_kept
from st_contrastive.encoder.requirements import (
    freeze_token_embeddings,
    require_embeddings_as_input,
    require_no_half,
    require_padding,
    require_plain_tokens,
    require_text_encoder,
    require_trainable,
)
from st_contrastive.encoder.rows import CorruptedTokens, Rows

__all__ = [
    "POOLING_MODES",
    "CorruptedTokens",
    "Encoded",
    "EncoderPasses",
    "Rows",
    "begins_with_special_token",
    "dropout_setting",
    "embedding_width",
    "embeds_first_token",
    "encode",
    "encode_with",
    "encoder_of",
    "freeze_token_embeddings",
    "has_dropout",
    "input_embedding_width",
    "is_causal",
    "is_saved_model",
    "max_positions",
    "modes_kept",
    "pool",
    "pool_as_model",
    "position_table",
    "require_embeddings_as_input",
    "require_no_half",
    "require_padding",
    "require_plain_tokens",
    "require_text_encoder",
    "require_trainable",
    "settings_of",
    "text_module",
    "token_width",
    "tokenizer_of",
    "unwrap",
    "vocabulary_size",
    "wrapper_chain",
]
