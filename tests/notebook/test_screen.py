"""What a cell shows: figures of the run, a curve that stays short, and nothing that a peer could make a script of."""

from __future__ import annotations

from itertools import pairwise

from minga.notebook.screen import MAX_POINTS, WIDTH, Screen


def progress(step: int, loss: float | None, **own: object) -> dict[str, object]:
    return {"step": step, "last_step": 0, "loss": loss, "members": 2, "samples_per_second": 3.5, "own": own}


def test_the_screen_shows_the_run_and_what_this_machine_does_in_it() -> None:
    screen = Screen("minga join")
    assert "starting" in screen.html()
    screen.note_progress(progress(3, None, phase="training", machine="cpu", samples=7, share=0.25))
    rows = dict(screen.rows())
    assert rows["step"] == "3"
    assert rows["loss"] == "none yet"
    assert rows["this machine"] == "training on cpu"
    assert rows["its samples"] == "7; 25% of those of the last steps"
    screen.summary = {"steps_contributed": 2, "samples": 7, "step": 9}
    assert dict(screen.rows())["your contribution"] == "7 samples in 2 steps. Thank you!"


def test_the_curve_of_a_long_run_stays_short_and_keeps_both_ends_with_its_points_evenly_between() -> None:
    screen = Screen("minga join")
    for step in range(0, 100 * MAX_POINTS, 3):
        screen.note_progress(progress(step, 9.0 - step / 1e4))
    html = screen.html()
    points = html.split('points="')[1].split('"')[0].split()
    assert MAX_POINTS / 2 <= len(points) <= MAX_POINTS
    places = [float(point.split(",")[0]) for point in points]
    assert max(later - earlier for earlier, later in pairwise(places)) <= 5 * WIDTH / MAX_POINTS
    assert "from 9.000 at step 0" in html
    assert points[0] == "0.0,0.0"
    assert points[-1] == "480.0,80.0"


def test_a_loss_that_stays_the_same_is_a_line() -> None:
    screen = Screen("minga join")
    for step in (1, 2):
        screen.note_progress(progress(step, 4.0))
    assert 'points="0.0,80.0 480.0,80.0"' in screen.html()


def test_words_of_others_are_text() -> None:
    screen = Screen("minga join")
    screen.note_progress(progress(1, 2.0, phase="<script>alert(1)</script>"))
    screen.complaint = "<b>"
    assert "<script>" not in screen.html()
    assert "<b></pre>" not in screen.html()
