"""What the demo shows of its day."""

from daemon.demo.report import DemoReport, Turn
from daemon.views import demo as views
from tests.views.examples import shown


def turn(name="open", *, prompt=500, reused=0, first=2.5, **changes) -> Turn:
    values = {"generated": 16, "seconds": 3.0, "answer": "Read the\n  tree."}
    read = changes.pop("read", prompt - reused)
    return Turn(name, prompt, reused, read, first_token_seconds=first, **(values | changes))


DAY = DemoReport(
    "SmolLM2",
    (
        turn(),
        turn("cancelled", prompt=2500, reused=500, read=1200, first=None, is_cancelled=True),
        turn("again", prompt=2500, reused=1700, first=8.0),
        turn("side by side", prompt=2600, reused=2500, first=0.1, is_alone=False),
    ),
    seconds=21.0,
)


def test_the_demo_shows_each_request_with_its_answer_on_one_line():
    text = shown(views.demo_turn(turn()))
    assert "500        0      500    2.5 s" in text
    assert "“Read the tree.”" in text
    assert len(shown(views.demo_turn(turn(answer="word " * 60))).splitlines()) == 2


def test_an_answer_cannot_write_to_the_terminal():
    assert "\x1b" not in shown(views.demo_turn(turn(answer="\x1b[2Jgone \x07 [red]plain[/]")))
    assert "[red]plain[/]" in shown(views.demo_turn(turn(answer="[red]plain[/]")))


def test_the_demo_sets_what_was_read_beside_what_everything_would_have_cost():
    text = shown(views.demo_summary(DAY))
    assert "8,100    4,700    2,600" in text
    assert "Read here:            2,600 tokens, 13.0 s" in text
    assert "Reading everything:   7,300 tokens, 36.5 s" in text


def test_the_rate_is_the_best_that_a_turn_reached_alone():
    assert DAY.reading_rate == 200


def test_a_day_that_read_too_little_to_be_timed_gives_no_seconds():
    day = DemoReport("tiny", (turn(prompt=50, first=0.001),), seconds=1.0)
    assert day.reading_rate is None
    assert "50 tokens\n" in "\n".join(map(str.rstrip, shown(views.demo_summary(day)).splitlines()))
