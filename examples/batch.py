"""Asks the questions of a file, one on each line, and writes one JSON line for each answer.

Run it again after an interruption: a question that was answered gets the stored answer.

    python examples/batch.py questions.txt answers.jsonl

Brokers and security are those of the services: a settings file that `CARPOOL_CONFIG` names, and
variables such as `CARPOOL_KAFKA_BOOTSTRAP` and `CARPOOL_KAFKA_SASL_PASSWORD`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import uuid
from pathlib import Path

from carpool import Client

IN_FLIGHT_MAX = 100
TIMEOUT_S = 600.0


async def collect(questions: list[str], answers: Path) -> None:
    """Asks `questions` as batch work and appends each answer to `answers` when it comes."""
    room = asyncio.Semaphore(IN_FLIGHT_MAX)

    async def ask(client: Client, question: str) -> dict[str, object]:
        async with room:
            answer = await client.ask(
                question,
                query_id=str(uuid.uuid5(uuid.NAMESPACE_URL, question)),  # the same on every run
                priority="batch",
                timeout_s=TIMEOUT_S,
            )
        return {
            "question": question,
            "status": answer.status,
            "answer": answer.answer,
            "citations": [each.title for each in answer.citations if each.quote is not None],
        }

    async with Client.from_settings() as client:
        with answers.open("w", encoding="utf-8") as file:
            for finished in asyncio.as_completed([ask(client, each) for each in questions]):
                file.write(json.dumps(await finished, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    asked, written = sys.argv[1:]
    lines = Path(asked).read_text(encoding="utf-8").splitlines()
    asyncio.run(collect([line for line in lines if line.strip()], Path(written)))
