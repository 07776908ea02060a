"""How a text is cut into passages."""

from __future__ import annotations

import re

from hypothesis import example, given
from hypothesis import strategies as st

from carpool.corpus.cut import cut_text, looks_like_markdown
from schemas.document import DocumentPassage

GUIDE = """# Guide

Some words.

## Set up

Do this.

```sh
# a comment, no heading
run
```

### On [Linux](https://example.com) `now`

Do that on a machine with Linux.

## Use it

Go on.
"""


def cut(text: str, chars_max: int = 45, *, title: str = "") -> list[tuple[str | None, str]]:
    found = cut_text(text, chars_max=chars_max, is_markdown=True, title=title)
    return [(each.title, each.text) for each in found]


def test_the_title_of_a_passage_is_its_path_of_headings() -> None:
    assert cut(GUIDE) == [
        ("Guide", "# Guide\n\nSome words."),
        ("Guide > Set up", "## Set up\n\nDo this."),
        ("Guide > Set up", "```sh\n# a comment, no heading\nrun\n```"),
        ("Guide > Set up > On Linux now", "Do that on a machine with Linux."),
        ("Guide > Use it", "## Use it\n\nGo on."),
    ]


def test_several_short_sections_have_the_headings_that_hold_for_all() -> None:
    assert cut("# A\n\n## B\n\nb\n\n### C\n\nc\n\n## D\n\nd") == [
        ("A", "# A\n\n## B\n\nb\n\n### C\n\nc\n\n## D\n\nd")
    ]
    assert cut("# A\n\na\n\n# B\n\nb") == [(None, "# A\n\na\n\n# B\n\nb")]


def test_the_path_begins_with_the_title_of_the_document_once() -> None:
    assert cut("# Guide\n\nwords", title="Guide") == [("Guide", "# Guide\n\nwords")]
    assert cut("# Guide\n\nwords", title="Book") == [("Book > Guide", "# Guide\n\nwords")]
    assert cut("words", title="Book") == [(None, "words")]


def test_headings_alone_are_a_passage_only_where_there_is_nothing_else() -> None:
    assert cut("# One\n\n## Two") == [("One > Two", "# One\n\n## Two")]
    long = "# A heading with many words in it\n\nA passage with many more words in it."
    assert [text for _, text in cut(long)] == ["A passage with many more words in it."]


def test_plain_text_is_cut_at_sentences_and_has_no_title() -> None:
    text = "It was built in 1889. It is 330 m high. Many go there."
    assert cut_text(text, chars_max=40, is_markdown=False) == [
        DocumentPassage(text="It was built in 1889. It is 330 m high.", start=0, end=39),
        DocumentPassage(text="Many go there.", start=40, end=54),
    ]


def test_a_text_is_markdown_if_a_heading_stands_between_empty_lines() -> None:
    assert looks_like_markdown(GUIDE)
    assert looks_like_markdown("words\n\n# End")
    assert not looks_like_markdown("# a comment\nimport this\n\n# another\nx = 1\n")
    assert not looks_like_markdown("```\n\n# in code\n\n```\n")
    assert not looks_like_markdown("#hashtag\n\nwords")
    assert not looks_like_markdown("")


HEADING = re.compile(r" {0,3}#{1,6}[ \t]")
TEXTS = st.text(st.sampled_from("#` \n\r\t.aé漢😀\u0301~>-*[]()")) | st.text(max_size=300)


@example(text="a\x1fb", chars_max=1, is_markdown=False)
@given(text=TEXTS, chars_max=st.integers(1, 30), is_markdown=st.booleans())
def test_passages_are_parts_of_the_text_that_fit_and_only_headings_and_spaces_are_left_out(
    text: str, chars_max: int, is_markdown: bool
) -> None:
    found = cut_text(text, chars_max=chars_max, is_markdown=is_markdown)
    left = list(text)
    last = 0
    for passage in found:
        assert passage.start is not None and passage.end is not None
        assert last <= passage.start < passage.end
        assert text[passage.start : passage.end] == passage.text
        assert len(passage.text) <= chars_max
        assert passage.text.strip()
        last = passage.end
        left[passage.start : passage.end] = " " * len(passage.text)
    start = 0
    for line in text.splitlines(keepends=True):
        if "".join(left[start : start + len(line)]).strip():
            assert is_markdown and HEADING.match(line)
        start += len(line)
