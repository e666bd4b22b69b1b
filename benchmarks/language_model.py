"""Train a small masked language model to start from, if BERT takes too long; its head is saved with it.

    python -m benchmarks.language_model wiki.txt lm --model sentence-transformers/all-MiniLM-L6-v2

trains an encoder's body further, with a new head. Each sentence is one input, as for the losses.
"""

from __future__ import annotations

import argparse

import torch
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainingArguments,
    set_seed,
)

from st_contrastive.inputs import load_sentences


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+", help="sentences, in any form that load_sentences reads")
    parser.add_argument("output", help="folder of the language model")
    parser.add_argument("--model", required=True, help="encoder to start from: a folder or a name on the hub")
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--learning-rate", type=float, default=5e-4)
    parser.add_argument("--max-length", type=int, default=64, help="tokens per text; longer texts are truncated")
    parser.add_argument("--workers", type=int, default=0, help="processes that mask the tokens")
    args = parser.parse_args()
    set_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForMaskedLM.from_pretrained(args.model, dtype=torch.float32)
    texts = [text for file in args.data for text in load_sentences(file)["sentence"]]
    read = tokenizer(texts, truncation=True, max_length=args.max_length)["input_ids"]
    on_gpu = torch.cuda.is_available()
    arguments = TrainingArguments(
        args.output,
        max_steps=args.steps,
        per_device_train_batch_size=args.batch,
        learning_rate=args.learning_rate,
        warmup_steps=0.05,
        weight_decay=0.01,
        train_sampling_strategy="group_by_length",
        dataloader_num_workers=args.workers,
        bf16=on_gpu,
        use_cpu=not on_gpu,
        logging_steps=min(500, args.steps),
        save_strategy="no",
        report_to="none",
        seed=0,
    )
    rows = [{"input_ids": ids} for ids in read]
    Trainer(model, arguments, DataCollatorForLanguageModeling(tokenizer), rows).train()
    model.save_pretrained(args.output)
    tokenizer.save_pretrained(args.output)


if __name__ == "__main__":
    main()
