"""Listing 1 of HedraRAG as it is printed. The tests load this file as an operator's module."""

from carpool.workflow import END, START, RAGraph

g1 = RAGraph()  # lines 3 to 10
g1.add_generation(0, prompt="Generate a hypothesis for {input}.", output="hypopara")
g1.add_retrieval(1, topk=5, query="hypopara", output="docs")
g1.add_generation(2, prompt="Answer {query} using {docs}.")
g1.add_edge(START, 0)
g1.add_edge(0, 1)
g1.add_edge(1, 2)
g1.add_edge(2, END)
hyde = g1.program("listing-hyde")

g2 = RAGraph()  # lines 11 to 19
g2.add_generation(0, prompt="Decompose {input} into subquestions.", output="subquestion")
g2.add_retrieval(1, topk=2, query="subquestion", output="docs")
g2.add_generation(2, prompt="Answer {subquestion} using {docs}.")
g2.add_edge(START, 0)
g2.add_edge(0, 1)
g2.add_edge(1, 2)
g2.add_edge(2, lambda s: 1 if s.get("subquestion") else END)
multistep = g2.program("listing-multistep")
