"""Finds out whether an answer says that the passages do not hold the answer.

It knows the phrases of English that models use, such as "the passages do not mention". In another
language, and in other words, a denial is read as any other sentence.
"""

from __future__ import annotations

import re

from carpool.statements import MARKER

_SOURCE = (
    r"(?:(?:passages?|excerpts?|context|notes)(?!\s+(?:of|through)\b)|"
    r"(?:provided|given|above|retrieved)\s+(?:texts?|documents?|sources?|information))"
)
_HOLD = (
    r"(?:mention|contain|hold|provid|say|specif|stat(?:e|ing)\b|includ|answer|giv|discuss|describ|"
    r"indicat|tell|list|address|offer|explain|reveal|about|relevant|relat|have|enough|sufficient|"
    r"clarif|identif|nam(?:e|ing)\b|refer|support|cover|appear|seem|clear)"
)
_TELL = r"(?:mention|say|specif|stat(?:e|ing)\b|provid|address|answer|discuss|about|tell)"
_NOT = r"(?:not|never|n['’]t|cannot|fails?\s+to)"
_FIND = r"(?:know|answer|find|determine|tell|say)\b"
_HELD = (
    r"(?:available|mentioned|specified|stated|given|found|provided|contained|answered|determined)"
)
_PARTS = (
    # "the passage does not really mention", "the passage says nothing", "the passages lack"
    rf"\b{_SOURCE}(?:\s+(?!that\b)\w+){{0,6}}?\s*{_NOT}\s+(?:\w+ly\s+)?{_HOLD}",
    rf"\bthe\s+text\s+\w+\s*{_NOT}\s+(?:\w+ly\s+)?{_HOLD}",
    rf"\b{_SOURCE}\s+(?:\w+\s+(?:no|nothing)\b|lacks?\b|only\s+{_HOLD})",
    rf"\b(?:none\s+of\s+the|neither|no)\s+(?:\w+\s+)?{_SOURCE}",
    # "the passage is about Ambrose. It is not about the episode"
    rf"\b{_SOURCE}\b[^\n]{{0,200}}?\b(?:it|they)\s+\w+\s*{_NOT}\s+(?:\w+ly\s+)?{_TELL}",
    # "there is no information", "there is not enough information"
    r"\bthere\s+(?:is|are|was)\s+no\s+(?:\w+\s+)?information\b",
    r"\b(?:not\s+enough|insufficient|no\s+such)\s+(?:information|context)\b",
    # "it is not given in these passages", "this cannot be determined", "the answer is unclear"
    rf"(?:not|n['’]t|never)\s+(?:\w+ly\s+)?{_HELD}\s+(?:in|by|from)\s+(?:\w+\s+){{0,2}}{_SOURCE}",
    rf"\b(?:question|answer|this|it)\s+(?:cannot|can\s+not|can['’]t)\s+be\s+{_HELD}",
    rf"\b(?:answer|information)\b[^.\n]{{0,40}}(?:\bnot|n['’]t)\s+(?:\w+ly\s+)?{_HELD}",
    rf"\b{_SOURCE}\b[^.\n]{{0,40}}\b(?:unclear|unknown|not\s+clear)\b",
    # "I do not know", "it is not possible to answer"
    rf"\bI(?:\s+\w+)?(?:\s+not|n['’]t|\s+cannot)\s+{_FIND}",
    r"\bI(?:\s+do\s+not|\s+don['’]t)\s+have\s+(?:\w+\s+)?information\b",
    rf"\b(?:I\s+am|I['’]m)\s+unable\s+to\s+{_FIND}|\bnot\s+possible\s+to\s+{_FIND}",
    # all of the answer: "Not specified.", "No answer."
    rf"\A\W*(?:no\s+answer|nothing|unknown|(?:it\s+is\s+)?not\s+{_HELD})\W*\Z",
)
_DENIAL = re.compile("|".join(_PARTS), re.IGNORECASE)


def denies(answer: str) -> bool:
    """Returns whether an answer says that the passages do not hold it, or a part of it."""
    return _DENIAL.search(MARKER.sub("", answer)) is not None
