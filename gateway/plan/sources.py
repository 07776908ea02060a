"""Turns the citations of an answer into the sources that Open WebUI shows. Pure."""

from __future__ import annotations

from gateway.plan.objects import AddressOf, Object, address
from schemas.answer import Answer, Citation

NOT_CITED = "The answer does not cite this passage."


def source_event(answer: Answer, address_of: AddressOf) -> Object | None:
    """Returns the event that shows the sources with their texts; None: nothing is cited.

    Open WebUI shows the texts of one address as one source, so two passages of a page get two
    addresses.
    """
    numbers = dict[str, int]()
    texts = dict[tuple[str, str, str], None]()
    for each in _in_places(answer):
        link = address(each.url, each.doc_id, address_of)
        if numbers.setdefault(link, each.n) != each.n:
            link = address_of(each.doc_id)
        name = each.title or each.doc_id
        texts[link, name, each.snippet or name] = None
    if not texts:
        return None
    data = {
        "source": {"name": "Carpool"},
        "document": [text for _, _, text in texts],
        "metadata": [{"source": link, "name": name, "external": True} for link, name, _ in texts],
    }
    return {"type": "source", "data": data}


def _in_places(answer: Answer) -> list[Citation]:
    """Returns the citations in the order of their numbers.

    In Open WebUI the marker [n] opens the n-th source, whatever is cited. So a passage that is not
    cited takes its place, if one after it is cited.
    """
    found = list(answer.citations)
    ids = {number: each.id for number, each in enumerate(answer.retrieved, start=1)}
    if all(ids.get(each.n) == each.doc_id for each in found):
        cited = {each.n for each in found}
        found += [
            Citation(n=number, doc_id=ids[number], snippet=NOT_CITED)
            for number in range(1, max(cited, default=0))
            if number not in cited
        ]
    return sorted(found, key=lambda each: each.n)
