"""Stop strings: the result depends on the text alone, and no part of a stop string leaks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from baton.text.stops import StopMatcher

LETTERS = st.text(alphabet="ab\n", min_size=1, max_size=4)


def naive(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """Look at every beginning of the text in turn; the first that ends with a stop string decides."""
    for end in range(1, len(text) + 1):
        matching = [stop for stop in stops if text[:end].endswith(stop)]
        if matching:
            stop = max(matching, key=len)
            return text[:end] if include else text[: end - len(stop)], stop
    return text, None


def run(pieces: list[str], stops: list[str], include: bool) -> tuple[str, str | None]:
    """Push the pieces until a match."""
    matcher, shown = StopMatcher(stops, include), ""
    for piece in pieces:
        text, stop = matcher.push(piece)
        shown += text
        if stop is not None:
            return shown, stop
    return shown + matcher.flush(), None


@given(
    pieces=st.lists(st.text(alphabet="ab\n", max_size=5), max_size=8), stops=st.lists(LETTERS), include=st.booleans()
)
def test_equals_naive_search_whatever_the_cuts(pieces: list[str], stops: list[str], include: bool) -> None:
    text = "".join(pieces)
    assert run(pieces, stops, include) == naive(text, stops, include)
    assert run(list(text), stops, include) == naive(text, stops, include)


@given(pieces=st.lists(st.text(alphabet="ab\n", max_size=5), max_size=8), stops=st.lists(LETTERS, min_size=1))
def test_nothing_of_the_stop_string_is_shown_early(pieces: list[str], stops: list[str]) -> None:
    """At every moment before the match, what was shown is a beginning of the final text."""
    final, _ = naive("".join(pieces), stops, include=False)
    matcher, shown = StopMatcher(stops), ""
    for piece in pieces:
        text, stop = matcher.push(piece)
        shown += text
        assert final.startswith(shown)
        if stop is not None:
            break


@given(pieces=st.lists(st.text(alphabet="ab\n", max_size=5), max_size=8), stops=st.lists(LETTERS, min_size=1))
def test_holds_back_no_more_than_needed(pieces: list[str], stops: list[str]) -> None:
    """What is held back is the beginning of a stop string."""
    matcher, shown, seen = StopMatcher(stops), "", ""
    for piece in pieces:
        text, stop = matcher.push(piece)
        shown, seen = shown + text, seen + piece
        if stop is not None:
            return
        held = seen[len(shown) :]
        assert any(stop.startswith(held) for stop in stops)


def test_across_pieces() -> None:
    matcher = StopMatcher(["\n\nUser:"])
    assert matcher.push("Yes.\n") == ("Yes.", None)
    assert matcher.push("\nUs") == ("", None)
    assert matcher.push("er: more") == ("", "\n\nUser:")


def test_false_alarm_is_released() -> None:
    matcher = StopMatcher(["</s>"])
    assert matcher.push("a <") == ("a ", None)
    assert matcher.push("b>") == ("<b>", None)


def test_include_stop() -> None:
    assert StopMatcher(["END"], include_stop=True).push("the END of") == ("the END", "END")


def test_longest_wins_where_two_end_together() -> None:
    """Else "<|" of "<|END" would be shown."""
    assert StopMatcher(["END", "<|END"]).push("x<|END") == ("x", "<|END")


def test_held_text_comes_at_the_end() -> None:
    matcher = StopMatcher(["stop"])
    assert matcher.push("do not sto") == ("do not ", None)
    assert matcher.flush() == "sto"
    assert matcher.flush() == ""


def test_no_stops_hold_nothing() -> None:
    assert StopMatcher([]).push("anything") == ("anything", None)
