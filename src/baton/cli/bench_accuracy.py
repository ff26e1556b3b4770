"""`baton bench accuracy URL`: are the answers right, and the same as those of another server?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from baton.cli.bench_run import ApiKey, Model, RequestTimeout, Url
from baton.core.errors import ConfigError

if TYPE_CHECKING:
    from baton.bench.accuracy import Graded, Quiz
    from baton.bench.parity import Parity

_SHOWN = 3


def accuracy(
    url: Url,
    data: Annotated[
        Path | None,
        typer.Option(help='JSONL of {"question", "answer": "... #### NUMBER"}; by default 200 of arithmetic.'),
    ] = None,
    examples: Annotated[Path | None, typer.Option(help="Worked questions to show before, in the same format.")] = None,
    shots: Annotated[int, typer.Option(help="How many of them.")] = 5,
    questions: Annotated[int | None, typer.Option(help="Only so many, from the first on.")] = None,
    max_tokens: Annotated[int, typer.Option(help="Of an answer.")] = 256,
    concurrency: Annotated[int, typer.Option(help="Questions at a time.")] = 8,
    seed: Annotated[int, typer.Option(help="Sent with every question.")] = 42,
    repeat: Annotated[int, typer.Option(help="Runs; answers of the first are compared with those of the others.")] = 1,
    parity: Annotated[
        str | None, typer.Option(help="Another server: its answers must be the same, token by token.")
    ] = None,
    model: Model = None,
    api_key: ApiKey = None,
    request_timeout_s: RequestTimeout = 600.0,
    output_dir: Annotated[Path | None, typer.Option(help="Folder for accuracy_run<i>.json.")] = None,
) -> None:
    """Few-shot questions with a number as answer. Exit code 1: a request failed, or answers of two servers differ."""
    import uvloop

    from baton.bench.accuracy import Quiz, score
    from baton.bench.parity import compare_replies
    from baton.bench.questions import EXAMPLES, QUESTIONS, read_questions
    from baton.bench.result import write

    shown = read_questions(examples or EXAMPLES)
    if len(shown) < shots:
        raise ConfigError(f"--shots {shots}, but {examples or EXAMPLES} has only {len(shown)} examples")
    quiz = Quiz(
        questions=read_questions(data or QUESTIONS)[:questions],
        examples=shown[:shots],
        max_tokens=max_tokens,
        seed=seed,
        concurrency=concurrency,
    )

    def ask(where: str, wanted: str | None) -> tuple[str, Graded]:
        return uvloop.run(_ask(where, quiz, wanted, api_key, request_timeout_s))

    runs = []
    for number in range(repeat):
        name, graded = ask(url, model)
        runs.append(graded)
        result = score(quiz, graded, name)
        share = "nothing was answered" if result["accuracy"] is None else f"accuracy {result['accuracy']:.4f}"
        print(
            f"run {number}: {share} ({result['num_right']} of {result['num_questions']} right, "
            f"{result['num_errors']} request errors, no number in {result['invalid_rate'] or 0:.1%}), "
            f"{result['tokens_per_second']:.1f} tokens/s"
        )
        if output_dir is not None:
            write(result, output_dir / f"accuracy_run{number}.json")
    failed = any(reply.error for run in runs for reply in run.replies)
    for number, graded in enumerate(runs[1:], 1):
        _tell(f"run {number} against run 0", compare_replies(runs[0].replies, graded.replies))
    if parity is not None:
        found = compare_replies(runs[0].replies, ask(parity, model)[1].replies)
        _tell(f"{url} against {parity}", found)
        failed = failed or not found.same
    raise typer.Exit(1 if failed else 0)


async def _ask(url: str, quiz: Quiz, model: str | None, api_key: str | None, timeout_s: float) -> tuple[str, Graded]:
    from baton.bench.accuracy import ask_all
    from baton.bench.client import Client, NoAnswerError
    from baton.bench.scrape import first_model

    async with Client(url, api_key=api_key, timeout_s=timeout_s) as client:
        try:
            name = model or await first_model(client)
        except NoAnswerError as error:
            raise ConfigError(str(error)) from error
        return name, await ask_all(client, quiz, name)


def _tell(what: str, found: Parity) -> None:
    kind = "token by token" if found.by_tokens else "by text: a server does not tell token ids"
    same = found.num_compared - len(found.differences)
    print(f"{what}: {same} of {found.num_compared} answers are the same ({kind}), {found.num_errors} request errors")
    for each in found.differences[:_SHOWN]:
        print(f"  question {each.number} differs at {each.place}: {each.first[-60:]!r} / {each.second[-60:]!r}")
