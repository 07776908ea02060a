"""Workflows: programs of several searches and generations (HedraRAG 4.1, ADR 0024).

```python
from carpool.workflow import Answer, Generate, Retrieve, workflow


@workflow("hyde", version=1)
def hyde(question):
    guess = yield Generate("hyde", question=question, max_tokens=96)
    found = yield Retrieve(guess.text or question)
    return Answer("cited", question=question, passages=found)
```

A program must be pure: it is run again from its beginning after every step, perhaps in another
process, and gets the results of the finished steps.
"""

from carpool.workflow.graph import END, START, RAGraph
from carpool.workflow.program import Program, Run, workflow
from carpool.workflow.steps import AnswerStep as Answer
from carpool.workflow.steps import Found, Generate, Retrieve, Said, WorkflowError

__all__ = [
    "END",
    "START",
    "Answer",
    "Found",
    "Generate",
    "Program",
    "RAGraph",
    "Retrieve",
    "Run",
    "Said",
    "WorkflowError",
    "workflow",
]
