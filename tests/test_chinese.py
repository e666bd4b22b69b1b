"""Sentences without spaces under a Chinese tokenizer: builders and every loss."""

from __future__ import annotations

from collections import Counter

import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from torch.utils.data import DataLoader

import st_contrastive as stc
from st_contrastive.augmentations import RandomDeletion

MANDARIN = [
    "小猫在暖和的椅子上睡觉。",
    "两只狗沿着河跑。",
    "下雨了。",
    "他在花园里看一本旧书。",
    "她买面包和牛奶。",
    "火车又晚点了。",
]
CANTONESE = [
    "貓仔喺暖笠笠嘅凳上面瞓覺。",
    "兩隻狗沿住條河跑。",
    "落雨喇。",
    "佢喺花園度睇緊本舊書。",
    "佢買麵包同牛奶。",
    "架火車又遲到。",
]
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def tokenizer(sentences, most=5000):
    characters = [c for c, _ in Counter("".join(sentences)).most_common(most) if not c.isspace()]
    pieces = [f"##{c}" for c in "0123456789abcdefghijklmnopqrstuvwxyz" if c in characters]
    vocabulary = dict.fromkeys([*SPECIALS, *characters, *pieces])
    return transformers.BertTokenizer(vocab={token: index for index, token in enumerate(vocabulary)})


def encoder(folder, sentences):
    own = tokenizer(sentences)
    config = transformers.BertConfig(
        vocab_size=len(own),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=130,
    )
    transformers.BertModel(config).save_pretrained(folder)
    own.save_pretrained(folder)
    return SentenceTransformer(modules=[Transformer(str(folder), max_seq_length=64), Pooling(32, "mean")], device="cpu")


def losses(model):
    yield stc.SimCSELoss(model), stc.text_dataset(MANDARIN)
    yield stc.ConIsILoss(model, strategy="subword", replacement_rate=0.5), stc.conisi_dataset(MANDARIN)
    given = stc.conisi_dataset(MANDARIN, RandomDeletion(0.3))
    assert all(0 < len(row["constructed"]) <= len(row["sentence"]) for row in given)
    yield stc.ConIsILoss(model, strategy="given"), given
    yield stc.TwinsLoss(model), stc.twins_dataset(MANDARIN, CANTONESE)
    own = tokenizer(CANTONESE)
    fraternal = stc.FraternalEmbedding(own, torch.randn(len(own), 8), model)
    assert fraternal.alignment.shared_tokens == len(set("".join(CANTONESE)) & set("".join(MANDARIN))) + len(SPECIALS)
    yield stc.TwinsLoss(model, fraternal=fraternal), stc.twins_dataset(MANDARIN, CANTONESE, fraternal=fraternal)
    yield stc.InfoCSELoss(model, extra_layers=1), stc.text_dataset(MANDARIN)


def test_every_loss_trains_on_characters(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = encoder(tmp_path / "zh", MANDARIN)
    assert model.tokenizer.tokenize("下雨了。") == ["下", "雨", "了", "。"]
    trained = 0
    for loss, dataset in losses(model):
        before = model[0].model.encoder.layer[0].attention.self.query.weight.detach().clone()
        loader = DataLoader(stc.input_examples(dataset), batch_size=3)
        model.fit(train_objectives=[(loader, loss)], warmup_steps=0, show_progress_bar=False)
        assert not torch.equal(before, model[0].model.encoder.layer[0].attention.self.query.weight)
        assert all(parameter.isfinite().all() for parameter in model.parameters())
        trained += 1
    assert trained == 6
    model.save_pretrained(str(tmp_path / "out"))
    assert SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(MANDARIN).shape == (6, 32)
