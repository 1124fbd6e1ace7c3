"""Where sentences end, and one spelling for what looks the same."""

from __future__ import annotations

import pytest

from minga.recipes.text.writing import normalize_bengali, script_share, split_bengali, split_sentences
from tests.worlds.recipe_text import GENESIS


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        ('He said, "Go." She went.', ['He said, "Go."', "She went."]),
        ("Mr. Smith met J. Doe. They spoke.", ["Mr. Smith met J. Doe.", "They spoke."]),
        ("So am I. You too.", ["So am I.", "You too."]),
        ("at 3.5 percent. 20 more came", ["at 3.5 percent.", "20 more came"]),
        ("wait... what", ["wait... what"]),
        ("line one\nline two", ["line one", "line two"]),
        ("lines of\n  a page. And\nmore\n \nmore", ["lines of a page.", "And more", "more"]),
        ("今日は。明日も！", ["今日は。", "明日も！"]),  # noqa: RUF001
        ("पहला। दूसरा।", ["पहला।", "दूसरा।"]),
        ("", []),
        (" . ", ["."]),
    ],
)
def test_sentences(text, sentences):
    assert split_sentences(text) == sentences


def test_no_sentence_loses_a_word():
    text = GENESIS.read_text("utf-8")
    assert " ".join(split_sentences(text)).split() == text.split()


D, VISARGA, ZWJ, ZWNJ = "\u0964", "\u0983", "\u200d", "\u200c"


@pytest.mark.parametrize(
    ("written", "normal"),
    [
        ("আমি যাই|", f"আমি যাই{D}"),
        ("আমি যাই\u09e4 সে যায়\u09f7", f"আমি যাই{D} সে যায়{D}"),
        ("শ্লোক\u09e5", "শ্লোক\u0965"),
        ("বিশেষত:", f"বিশেষত{VISARGA}"),
        ("১২:৩০", "১২:৩০"),
        ("ratio a:b", "ratio a:b"),
        ("এক \t  দুই\u00a0তিন \n চার", "এক দুই তিন\nচার"),
        ("\ufeffক\u200bখ\u0007", "কখ"),
        (f"র{ZWJ}\u09cdযাব", f"র{ZWJ}\u09cdযাব"),
        (f"ক\u09cd{ZWNJ}ষ", f"ক\u09cd{ZWNJ}ষ"),
        ("য\u09bc", "য\u09bc"),
        ("\u09df", "য\u09bc"),
        ("ক\u09c7\u09be", "ক\u09cb"),
    ],
)
def test_what_looks_the_same_has_one_spelling(written: str, normal: str) -> None:
    assert normalize_bengali(written) == normal
    assert normalize_bengali(normal) == normal


def test_the_spelling_of_the_paper_turns_joiners_into_blanks_and_lowers_case() -> None:
    assert normalize_bengali(f"র{ZWJ}\u09cdযাব ABC", paper=True) == "র \u09cdযাব abc"
    assert normalize_bengali("শ্লোক\u09e5", paper=True) == f"শ্লোক{D}"


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        (f"আমি ভাত খাই{D} সে মাছ খায়{D}", [f"আমি ভাত খাই{D}", f"সে মাছ খায়{D}"]),
        (f"আমি ভাত খাই{D}সে মাছ খায়{D}", [f"আমি ভাত খাই{D}", f"সে মাছ খায়{D}"]),
        (f"সে বলল, \u201cআমি যাব{D}\u201d তারপর গেল{D}", [f"সে বলল, \u201cআমি যাব{D}\u201d", f"তারপর গেল{D}"]),
        ("তুমি কি যাবে? হ্যাঁ! চল…", ["তুমি কি যাবে?", "হ্যাঁ!", "চল…"]),
        (f"ডা. করিম এলেন{D}", [f"ডা. করিম এলেন{D}"]),
        (f"মো. রহিম ও মোঃ. করিম এলেন{D}", [f"মো. রহিম ও মোঃ. করিম এলেন{D}"]),
        (f"বাড়ি ১০ কি.মি. দূরে{D}", [f"বাড়ি ১০ কি.মি. দূরে{D}"]),
        (f"ড. আলী লি. কোম্পানির অধ্যা. ছিলেন{D} শেষ", [f"ড. আলী লি. কোম্পানির অধ্যা. ছিলেন{D}", "শেষ"]),
        ("দাম ৩.৫০ টাকা. সস্তা", ["দাম ৩.৫০ টাকা.", "সস্তা"]),
        (f"এক\n\nদুই{D}\n", ["এক", f"দুই{D}"]),
        ("প্রথম\u0965দ্বিতীয়\u0965", ["প্রথম\u0965", "দ্বিতীয়\u0965"]),
        ("example.com দেখুন", ["example.com দেখুন"]),
        ("", []),
        (f"{D}", [f"{D}"]),
    ],
)
def test_sentences_end_at_dandas_and_not_at_abbreviations(text: str, sentences: list[str]) -> None:
    assert split_bengali(text) == sentences


def test_no_letter_is_lost_by_splitting() -> None:
    text = f"আমি ভাত খাই{D}সে ডা. করিম! কি? \u201cহ্যাঁ{D}\u201d তারপর. শেষ"
    assert "".join("".join(split_bengali(text)).split()) == "".join(text.split())


def test_the_script_is_that_of_the_letters() -> None:
    assert script_share("বাংলা ১২৩ !", "Bengali") == 1.0
    assert script_share("abc", "Bengali") == 0.0
    assert script_share("123", "Bengali") == 0.0
    assert script_share("ab কখ", "Bengali") == 0.5
