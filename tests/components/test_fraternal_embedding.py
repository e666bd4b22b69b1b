from __future__ import annotations

import shutil

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers

from st_contrastive import FraternalEmbedding, SimCSELoss
from st_contrastive.components.shared_tokens import fit_affine, shared_tokens
from tests import foreign


def test_tokenizer_and_matrix_are_loaded_and_mapped(build, german):
    model = build()
    targets = model.transformers_model.get_input_embeddings().weight.detach()
    fraternal = FraternalEmbedding.from_pretrained(german, model)
    matrix = load_file(german / "model.safetensors")["embeddings.word_embeddings.weight"]
    torch.testing.assert_close(fraternal.weight, matrix)
    assert (fraternal.weight.shape[1], fraternal.width) == (8, 32)
    assert not list(fraternal.parameters())
    assert set(fraternal.state_dict()) == {"projection", "bias"}  # the constructor gets the matrix again
    anchors = [t for t in fraternal.tokenizer.get_vocab() if t in model.tokenizer.get_vocab()]
    assert fraternal.alignment.shared_tokens == len(anchors) >= foreign.SHARED - 1
    # The errors of a least-squares solution are orthogonal to its design matrix.
    ids = torch.tensor([fraternal.tokenizer.get_vocab()[token] for token in anchors])
    errors = fraternal(ids) - targets[[model.tokenizer.get_vocab()[token] for token in anchors]]
    design = torch.cat([matrix[ids], torch.ones(len(ids), 1)], dim=1)
    assert (design.T @ errors).abs().max() < 1e-4
    assert fraternal(ids[None]).shape == (1, len(ids), 32)
    assert not fraternal(ids).requires_grad


def test_the_alignment_is_measured_on_held_out_tokens():
    source, target = torch.randn(40, 4).double(), torch.randn(40, 6).double()
    target[:, :4] += source
    held_out, rest = [0, 10, 20, 30], [row for row in range(40) if row % 10]
    design = torch.cat([source, torch.ones(40, 1)], dim=1)
    predicted = design[held_out] @ torch.linalg.lstsq(design[rest], target[rest]).solution
    weights, shift, alignment = fit_affine(source.float(), target.float())
    assert (weights.shape, shift.shape) == ((4, 6), (6,))
    error = (predicted - target[held_out]).square().sum() / (target[rest].mean(0) - target[held_out]).square().sum()
    assert alignment.residual == pytest.approx(error.item(), rel=1e-5)
    cosine = torch.nn.functional.cosine_similarity(predicted, target[held_out]).mean()
    assert alignment.cosine == pytest.approx(cosine.item(), rel=1e-5)
    assert "40 shared tokens" in str(alignment)


class Scaled(torch.nn.Embedding):
    """As in Gemma, the layer scales the rows of its matrix."""

    def forward(self, ids):
        return 5 * super().forward(ids)


def test_an_exact_map_is_found_for_a_scaled_embedding_layer(build):
    model = build()
    scaled = Scaled(len(model.tokenizer), 32)
    model.transformers_model.set_input_embeddings(scaled)
    weight = scaled.weight.detach() @ torch.linalg.qr(torch.randn(32, 32))[0]
    fraternal = FraternalEmbedding(model.tokenizer, weight, model)
    ids = torch.arange(40)
    torch.testing.assert_close(fraternal(ids), scaled(ids).detach(), atol=1e-4, rtol=1e-3)
    assert fraternal.alignment.residual < 1e-6
    assert fraternal.alignment.cosine == pytest.approx(1)
    with pytest.raises(ValueError, match="does not scale its embeddings"):
        FraternalEmbedding(model.tokenizer, weight, model, align="none")


def sentencepiece(tokens):
    model = Tokenizer(models.Unigram([(token, -1.0) for token in tokens], unk_id=0))
    model.pre_tokenizer = pre_tokenizers.Metaspace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=model, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )


def test_vectors_are_unchanged_without_a_map(build):
    weight = torch.randn(len(foreign.tokenizer()), 32)
    fraternal = FraternalEmbedding(foreign.tokenizer(), weight, build(), align="none")
    assert torch.equal(fraternal(torch.arange(9)), weight[:9])
    assert fraternal.alignment is None


def shared(foreign_tokenizer, native):
    return dict(zip(*(ids.tolist() for ids in shared_tokens(foreign_tokenizer, native)), strict=True))


def test_tokens_match_across_kinds_of_vocabularies(build):
    wordpieces = build().tokenizer  # lower-case WordPiece tokens: "the", "##s", "##ing"
    vocabulary = wordpieces.get_vocab()
    pieces = ["<unk>", "<s>", "</s>", "<pad>", "▁the", "the", "▁The", "s", "▁s", "ing", "▁ing", "▁river", "▁fluss"]
    found = {pieces[a]: b for a, b in shared(sentencepiece(pieces), wordpieces).items()}
    assert found == {
        "<unk>": vocabulary["[UNK]"],
        "<s>": vocabulary["[CLS]"],
        "</s>": vocabulary["[SEP]"],
        "<pad>": vocabulary["[PAD]"],
        "▁the": vocabulary["the"],
        "▁The": vocabulary["the"],  # the encoder's tokenizer is uncased
        "s": vocabulary["##s"],
        "▁s": vocabulary["s"],
        "ing": vocabulary["##ing"],
        "▁river": vocabulary["river"],
    }  # not "the" inside a word, nor "▁ing"
    # Tokens without the mark "</w>" may be at the beginning of a word or inside it.
    ended = shared(sentencepiece([*pieces[:4], "the</w>", "river</w>", "in", "s", ".</w>"]), wordpieces)
    assert {key: value for key, value in ended.items() if key > 3} == {4: vocabulary["the"], 5: vocabulary["river"]}
    byte_level = build("roberta").tokenizer
    found = shared(sentencepiece([*pieces[:4], "▁the", "é", "▁The", "a"]), byte_level)
    assert byte_level.convert_ids_to_tokens(list(found.values())) == ["<unk>", "<s>", "</s>", "<pad>", "Ġthe", "a"]


def test_ideographs_and_punctuation_match_at_any_place():
    tokens = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]", "猫", "##猫", "。", "##a", "a"]
    chinese = transformers.BertTokenizer(vocab={token: place for place, token in enumerate(tokens)})
    found = shared(sentencepiece(["<unk>", "<s>", "</s>", "<pad>", "猫", "▁。", "a"]), chinese)
    assert (found[4], found[5], found[6]) == (5, 7, 8)
    assert len(shared(foreign.tokenizer(), chinese)) == 5 + 2  # special tokens, "a" and "##a"


def test_encoded_labels_are_decoded(build, german):
    fraternal = FraternalEmbedding.from_pretrained(german, build(), max_length=6)
    texts = ["regen fällt", "", "sie kauft brot und milch und brot"]
    labels = fraternal.encode_labels(texts)
    expected = [fraternal.tokenizer(text, truncation=True, max_length=6)["input_ids"] for text in texts]
    assert [len(row) for row in expected] == [4, 2, 6]
    assert labels[:, 1:].tolist() == [row + [-1] * (6 - len(row)) for row in expected]
    assert set(labels[:, 0]) == {fraternal.vocabulary_checksum}
    labels = torch.from_numpy(labels)
    ids, mask = fraternal.decode_labels(labels)
    assert mask.tolist() == [[1, 1, 1, 1, 0, 0], [1, 1, 0, 0, 0, 0], [1] * 6]
    assert [row[: len(e)].tolist() for row, e in zip(ids, expected, strict=True)] == expected
    ids, mask = fraternal.decode_labels(labels, limit=3)
    sep = fraternal.tokenizer.sep_token_id
    assert ids[0].tolist() == [*expected[0][:2], sep]  # truncation drops the end of the sentence
    assert ids[2].tolist() == [*expected[2][:2], sep]
    assert mask.tolist() == [[1, 1, 1], [1, 1, 0], [1, 1, 1]]


def test_other_labels_are_refused(build, german):
    fraternal = FraternalEmbedding.from_pretrained(german, build())
    for labels in (torch.zeros(3), torch.zeros(3, dtype=torch.long), torch.zeros(3, 4)):
        with pytest.raises(ValueError, match="The labels are not translations"):
            fraternal.decode_labels(labels)
    with pytest.raises(ValueError, match="another tokenizer than fraternal's"):
        fraternal.decode_labels(torch.ones(3, 4, dtype=torch.long))


def test_bad_checkpoints_are_refused(build, german, tmp_path):
    model, broken = build(), tmp_path / "broken"
    shutil.copytree(german, broken)
    (broken / "model.safetensors").unlink()
    for folder, message in ((tmp_path / "missing", "missing is not a folder"), (broken, "broken can't be loaded")):
        with pytest.raises(OSError, match=message):
            FraternalEmbedding.from_pretrained(folder, model)
    save_file({"classifier.weight": torch.zeros(2, 2)}, broken / "model.safetensors", {"format": "pt"})
    with pytest.raises(OSError, match="holds no input embeddings"):
        FraternalEmbedding.from_pretrained(broken, model)


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((200, 64), {}, r"share \d+ tokens, too few"),
        ((200, 8), {"align": "none"}, "encoder's width 32, got 8"),
        ((5, 8), {}, "only 5 embeddings"),
        ((200, 8), {"align": "linear"}, "align must be"),
        ((200, 8), {"max_length": 2}, "has 2 special tokens"),
    ],
)
def test_bad_arguments_are_refused(build, shape, options, message):
    with pytest.raises(ValueError, match=message):
        FraternalEmbedding(foreign.tokenizer(), torch.randn(shape), build(), **options)


def test_a_tokenizer_without_words_is_refused(build):
    """transformers loads such a tokenizer from a folder without tokenizer files."""
    words = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    empty, model = transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]"), build()
    with pytest.raises(ValueError, match="fraternal has no tokenizer with a vocabulary"):
        FraternalEmbedding(empty, torch.randn(9, 8), model)
    model[0].processor = empty
    with pytest.raises(ValueError, match="model has no tokenizer with a vocabulary"):
        SimCSELoss(model)
