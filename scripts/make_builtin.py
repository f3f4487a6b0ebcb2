"""Make the built-in demo checkpoint: corpus, tokenizer, training, quality table.

python scripts/make_builtin.py corpus --kind stories --count 3
python scripts/make_builtin.py train --out dgen/builtin --device cuda --minutes 7.5
python scripts/make_builtin.py measure --model dgen/builtin --output table.json
"""

import argparse
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from builtin_recipe.measure import Backend

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

SHIPPED = Path(__file__).parent.parent / "dgen" / "builtin"


def _say(line: str) -> None:
    print(line, flush=True)


def _corpus(args: argparse.Namespace) -> None:
    from builtin_recipe.corpus import KINDS, World

    world, rng = World(), random.Random(args.seed)
    for kind in (args.kind,) if args.kind else KINDS:
        for _ in range(args.count):
            exchange = world.question(kind, rng, held=args.held).exchange
            _say(f"[{kind}] {exchange.question!r}\n  {exchange.answer!r}")


def _tokenizer(args: argparse.Namespace) -> None:
    from builtin_recipe.tokenizer import build_tokenizer, write_tokenizer

    write_tokenizer(build_tokenizer(args.seed), args.out)
    _say(f"tokenizer written to {args.out}")


def _train(args: argparse.Namespace) -> None:
    from builtin_recipe.train import Plan, train

    plan = Plan(
        out=args.out, device=args.device, seed=args.seed, minutes=args.minutes, steps=args.steps, rows=args.rows,
        pool=args.pool, rate=args.rate, compiled=args.compile, start=args.start, processes=args.processes,
        report_every=args.report_every, checks=args.checks,
    )  # fmt: skip
    report = train(plan, _say)
    if args.report:
        args.report.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def _measure(args: argparse.Namespace) -> None:
    from builtin_recipe.measure import as_json, measure, misses, table

    began = time.monotonic()
    rows = measure(_backend(args), seed=args.questions_seed, each=args.each)
    _say(table(rows))
    _say("\n".join(misses(rows)) or "every target is met")
    _say(f"measured in {time.monotonic() - began:.0f} s on {args.device}")
    if args.output:
        found = as_json(rows, seed=args.questions_seed, device=args.device, backend=args.backend)
        args.output.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _backend(args: argparse.Namespace) -> "Backend":
    if args.backend == "transformers":
        from builtin_recipe.backend_transformers import TransformersBackend

        return TransformersBackend(args.out, device=args.device)
    from builtin_recipe.backend_dgen import DgenBackend

    return DgenBackend(args.out, device=args.device)


def _all(args: argparse.Namespace) -> None:
    _train(args)
    _measure(args)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Make the built-in demo checkpoint.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, run, text in (
        ("corpus", _corpus, "print samples of the corpus"),
        ("tokenizer", _tokenizer, "train and write the tokenizer alone"),
        ("train", _train, "train and write the whole checkpoint"),
        ("measure", _measure, "print the quality table of a checkpoint"),
        ("all", _all, "train, then measure"),
    ):
        sub = commands.add_parser(name, help=text)
        sub.set_defaults(run=run)
        sub.add_argument("--seed", type=int, default=0, help="seed of corpus, tokenizer and weights")
        if name == "corpus":
            sub.add_argument("--kind", help="one kind only")
            sub.add_argument("--count", type=int, default=5)
            sub.add_argument("--held", action="store_true", help="from the held-out side of the split")
            continue
        sub.add_argument("--out", "--model", type=Path, default=SHIPPED, help="the checkpoint's folder")
        if name in ("train", "all"):
            sub.add_argument("--minutes", type=float, default=7.5, help="wall clock of the steps alone")
            sub.add_argument(
                "--steps", type=int, default=0, help="stop after so many steps (0: by the clock)"
            )
            sub.add_argument("--rows", type=int, default=256, help="examples a step")
            sub.add_argument("--pool", type=int, default=600_000, help="short examples made beforehand")
            sub.add_argument("--rate", type=float, default=2e-3, help="peak learning rate")
            sub.add_argument(
                "--compile", action="store_true", help="compile each layer (torch.compile) before capture"
            )
            sub.add_argument("--start", type=Path, help="start from this checkpoint's weights")
            sub.add_argument("--processes", type=int, default=os.cpu_count() or 1)
            sub.add_argument(
                "--report-every", type=float, default=60.0, help="seconds between reports and files"
            )
            sub.add_argument("--checks", type=int, default=32, help="questions of each kind in a report")
            sub.add_argument("--report", type=Path, help="write what was measured while training as JSON")
        if name != "tokenizer":
            sub.add_argument("--device", default="cpu")
        if name in ("measure", "all"):
            sub.add_argument("--each", type=int, default=100, help="questions of each kind")
            sub.add_argument(
                "--questions-seed", type=int, default=2026, help="seed of the held-out questions"
            )
            sub.add_argument(
                "--backend", choices=("dgen", "transformers"), default="dgen", help="who answers"
            )
            sub.add_argument("--output", type=Path, help="write the table as JSON")
    return parser


def main() -> None:
    """Run the command that was asked for."""
    args = _parser().parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
