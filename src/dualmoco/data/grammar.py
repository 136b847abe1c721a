"""A grammar of parallel English and Chinese sentences: the training data of the demo (`grammar:COUNT` in a recipe).

The words are in `demo/words.tsv`; each pattern below makes one kind of sentence of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import NamedTuple

Cells = tuple[str, ...]
Phrase = tuple[str, str]  # English, Chinese


def _read_words() -> dict[str, tuple[Cells, ...]]:
    """The tables of words: rows of cells by the name of the table."""
    tables: dict[str, tuple[Cells, ...]] = {}
    for line in files("dualmoco.data").joinpath("demo/words.tsv").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            name, *cells = line.split("\t")
            tables[name] = (*tables.get(name, ()), tuple(cells))
    for tense in ("past", "future"):
        tables[f"{tense}_times"] = tables[f"{tense}_days"] + tables[f"{tense}_times"]
    return tables


def _by_group(table: str) -> dict[str, tuple[Cells, ...]]:
    """The rows of a table by their first cell, without that cell."""
    groups: dict[str, tuple[Cells, ...]] = {}
    for group, *cells in WORDS[table]:
        groups[group] = (*groups.get(group, ()), tuple(cells))
    return groups


class Forms(NamedTuple):
    """The words that agree with a personal pronoun."""

    be: str
    was: str
    do: str
    object: str
    possessive: str
    mine: str
    zh: str


@dataclass(frozen=True)
class Person:
    """Someone a sentence is about, and the pronoun that refers to them."""

    en: str
    zh: str
    pronoun: str

    @property
    def forms(self) -> Forms:
        """The words that agree with this person."""
        return FORMS[self.pronoun]

    @property
    def object(self) -> str:
        """The English form after a verb or a preposition."""
        return self.forms.object if self.en == self.pronoun else self.en

    def present(self, phrase: str) -> str:
        """A verb phrase in the present tense, agreeing with this person."""
        return _third_person(phrase) if self.forms.do == "does" else phrase


class Noun(NamedTuple):
    """A countable thing, its measure word, and a group that determines where it is sold or found."""

    one: str
    many: str
    measure: str
    zh: str
    group: str


WORDS = _read_words()
FORMS = {pronoun: Forms(*forms) for pronoun, *forms in WORDS["forms"]}
PEOPLE = tuple(Person(*row) for row in WORDS["people"])
TELLABLE = tuple(person for person in PEOPLE if person.pronoun != "you")
ASKABLE = tuple(person for person in PEOPLE if person.pronoun not in {"I", "we"})
PAST_FORMS = {verb: past for verb, past in WORDS["past_forms"]}
OUTDOOR_SCENES = tuple(row for row in WORDS["scenes"] if row[3] in {"in the park", "at the beach", "in the garden"})
INDOOR_SCENES = tuple(row for row in WORDS["scenes"] if row[3] in {"at home", "in the library", "at the coffee shop"})
NOUNS = tuple(Noun(*row) for row in WORDS["nouns"])
MOST_COUNTED = {group: int(most) for group, most in WORDS["most"]}  # of a thing in one sentence
SHOPS, PRICES, SPOTS = _by_group("shops"), _by_group("prices"), _by_group("spots")
COMPARATIVES, MEALS = _by_group("comparatives"), tuple(_by_group("meals").values())
GOODS = tuple(noun for noun in NOUNS if noun.group in SHOPS)
OWNED = tuple(noun for noun in NOUNS if noun.group in {"text", "wear", "home", "costly"})
DEGREES = (("", ""), ("much ", "得多"), ("a little ", "一点儿"))
MAX_PAIRS = 200_000  # more exist, but then only the most productive patterns have sentences left


def _third_person(phrase: str) -> str:
    """A verb phrase as it follows he, she or it."""
    verb, _, rest = phrase.partition(" ")
    if verb.endswith("y") and verb[-2] not in "aeiou":
        verb = verb[:-1] + "ie"
    elif verb.endswith(("ch", "sh", "o")):
        verb += "e"
    return f"{verb}s {rest}".rstrip()


def _past(phrase: str) -> str:
    verb, _, rest = phrase.partition(" ")
    return f"{PAST_FORMS.get(verb, verb.removesuffix('e') + 'ed')} {rest}".rstrip()


def _gerund(phrase: str) -> str:
    verb, _, rest = phrase.partition(" ")
    return f"{verb.removesuffix('e')}ing {rest}".rstrip()


def _article(phrase: str) -> str:
    vowel_sound = phrase[0] in "aeiouE" and not phrase.startswith("use")
    return f"{'an' if vowel_sound else 'a'} {phrase}"


def _counted(noun: Noun, count: int) -> Phrase:
    """A number of things, such as ("two books", "两本书")."""
    number, number_zh = WORDS["numbers"][count]
    return _article(noun.one) if count == 1 else f"{number} {noun.many}", number_zh + noun.measure + noun.zh


def _two_people(rng: random.Random, firsts: Sequence[Person] = TELLABLE) -> tuple[Person, Person]:
    """Two people who are surely not the same: neither "I ... us" nor "Tom ... him"."""
    while True:
        first, second = rng.choice(firsts), rng.choice(PEOPLE)
        both_speakers = {first.pronoun, second.pronoun} <= {"I", "we"}
        vague = second.en in {"he", "she", "they"} and first.pronoun not in {"I", "you"}
        if first != second and not both_speakers and not vague:
            return first, second


def _scene(
    rng: random.Random, people: Sequence[Person], templates: str, scenes: Sequence[Cells] = WORDS["scenes"]
) -> Phrase:
    """Someone does something somewhere at some time, in the words of one of the templates."""
    who, (phrase, phrase_zh, past_zh, place, place_zh) = rng.choice(people), rng.choice(scenes)
    times, english, chinese = rng.choice(WORDS[templates])
    time, time_zh = rng.choice(WORDS[times])
    verbs = {"base": phrase, "past": _past(phrase), "present": who.present(phrase)}
    return (
        english.format(who=who.en, be=who.forms.be, do=who.forms.do, place=place, time=time, **verbs),
        chinese.format(who=who.zh, place=place_zh, time=time_zh, base=phrase_zh, past=past_zh),
    )


def _condition(rng: random.Random) -> Phrase:
    """If it rains tomorrow, Tom will play chess at home."""
    weathers, scenes = rng.choice((("bad_weather", INDOOR_SCENES), ("good_weather", OUTDOOR_SCENES)))
    weather, weather_zh = rng.choice(WORDS[weathers])
    english, chinese = _scene(rng, TELLABLE, "conditions", scenes)
    return english.format(weather=weather), chinese.format(weather=weather_zh)


def _taste(rng: random.Random) -> Phrase:
    """Mary likes tea, but she does not like coffee."""
    (one, one_zh), (other, other_zh) = rng.sample(rng.choice(MEALS), 2)
    if rng.random() < 0.5:
        who, (time, time_zh) = rng.choice(ASKABLE), rng.choice(WORDS["today_times"])
        return f"would {who.en} like {one} or {other} {time}?", f"{who.zh}{time_zh}想{one_zh}还是{other_zh[1:]}？"
    who = rng.choice(TELLABLE)
    english = f"{who.en} {who.present('like')} {one}, but {who.pronoun} {who.forms.do} not like {other}."
    return english, f"{who.zh}喜欢{one_zh}，但是不喜欢{other_zh}。"


def _purchase(rng: random.Random) -> Phrase:
    """Mary bought two books at the bookstore for thirty yuan each yesterday."""
    noun = rng.choice(GOODS)
    count, ((shop, shop_zh),) = rng.randint(1, MOST_COUNTED[noun.group]), SHOPS[noun.group]
    (things, things_zh), (price, price_zh) = _counted(noun, count), rng.choice(PRICES[noun.group])
    if rng.random() < 0.3:
        who, the_things = rng.choice(ASKABLE), noun.one if count == 1 else things
        asked_zh = f"{who.zh}买那{things_zh.removeprefix('一')}花了多少钱？"
        return f"how much did {who.en} pay for the {the_things}?", asked_zh
    who, (time, time_zh) = rng.choice(TELLABLE), rng.choice(WORDS["past_times"])
    each, each_zh = ("", "花了") if count == 1 else (" each", f"每{noun.measure}")
    english = f"{who.en} bought {things} {shop} for {price} yuan{each} {time}."
    return english, f"{who.zh}{time_zh}{shop_zh}买了{things_zh}，{each_zh}{price_zh}块钱。"


def _weather(rng: random.Random) -> Phrase:
    """It will be colder in Paris than in Rome tomorrow."""
    be, days, will_zh = rng.choice((("was", "past_days", ""), ("will be", "future_days", "会")))
    (day, day_zh), ((city, city_zh, _), (other, other_zh, _)) = rng.choice(WORDS[days]), rng.sample(WORDS["cities"], 2)
    if rng.random() < 0.4:
        sky, sky_zh = rng.choice(WORDS["skies"])
        return f"it {be} {sky} in {city} {day}.", f"{day_zh}{city_zh}{sky_zh.replace('很', will_zh + '很')}。"
    climate, climate_zh = rng.choice(WORDS["climates"])
    english = f"it {be} {climate} in {city} than in {other} {day}."
    return english, f"{day_zh}{city_zh}{will_zh}比{other_zh}{climate_zh}。"


def _travel(rng: random.Random) -> Phrase:
    """Tom went from Beijing to Shanghai by train last week to see a friend."""
    who, (purpose, purpose_zh) = rng.choice(TELLABLE), rng.choice(WORDS["purposes"])
    (start, start_zh, region), (end, end_zh, end_region) = rng.sample(WORDS["cities"], 2)
    by_land = region == end_region != "overseas"
    vehicle, vehicle_zh = rng.choice(WORDS["vehicles"] if by_land else WORDS["vehicles"][-1:])
    go, times, will_zh, le = rng.choice((("went", "past_trips", "", "了"), ("will go", "future_trips", "会", "")))
    time, time_zh = rng.choice(WORDS[times])
    english = f"{who.en} {go} from {start} to {end} {vehicle} {time} {purpose}."
    return english, f"{who.zh}{time_zh}{will_zh}{vehicle_zh}从{start_zh}去{end_zh}{purpose_zh}{le}。"


def _comparison(rng: random.Random) -> Phrase:
    """My camera is much cheaper than Tom's."""
    first, second = _two_people(rng, PEOPLE)
    while {first.pronoun, second.pronoun} & {"we", "they"}:
        first, second = _two_people(rng, PEOPLE)
    noun, (degree, degree_zh) = rng.choice(OWNED), rng.choice(DEGREES)
    more, more_zh = rng.choice(COMPARATIVES[noun.group] + COMPARATIVES["any"])
    owner = first.forms.possessive if first.en == first.pronoun else f"{first.en}'s"
    other = second.forms.mine if second.en == second.pronoun else f"{second.en}'s"
    english = f"{owner} {noun.one} is {degree}{more} than {other}."
    return english, f"{first.zh}的{noun.zh}比{second.zh}的{more_zh}{degree_zh}。"


def _wish(rng: random.Random) -> Phrase:
    """Tom wants to buy a red scarf for Mary."""
    (who, friend), noun = _two_people(rng), rng.choice(OWNED)
    quality, quality_zh = rng.choice(WORDS["qualities"] if noun.group == "text" else WORDS["colors"])
    thing = _article(f"{quality} {noun.one}")
    english = f"{who.en} {who.present('want')} to buy {thing} for {friend.object}."
    return english, f"{who.zh}想给{friend.zh}买一{noun.measure}{quality_zh}{noun.zh}。"


def _existence(rng: random.Random) -> Phrase:
    """There are three books and a pen on the desk."""
    groups, spots = rng.choice(tuple(SPOTS.items()))
    spot, spot_zh = rng.choice(spots)
    noun, other = rng.sample([noun for noun in NOUNS if noun.group in groups.split()], 2)
    count, other_count = rng.randint(1, MOST_COUNTED[noun.group]), rng.randint(1, MOST_COUNTED[other.group])
    (things, things_zh), (others, others_zh) = _counted(noun, count), _counted(other, other_count)
    be = "is" if count == 1 else "are"
    return f"there {be} {things} and {others} {spot}.", f"{spot_zh}有{things_zh}和{others_zh}。"


def _reason(rng: random.Random) -> Phrase:
    """Tom went to bed early yesterday because he was too tired."""
    who, (time, time_zh) = rng.choice(TELLABLE), rng.choice(WORDS["past_days"])
    cause, cause_zh, result, result_zh = rng.choice(WORDS["causes"])
    english = f"{who.en} {result} {time} because {cause.format(he=who.pronoun, was=who.forms.was)}."
    if "{he}" in cause:
        return english, f"因为{who.zh}{time_zh}{cause_zh}，所以{who.forms.zh}{result_zh}。"
    return english, f"因为{time_zh}{cause_zh}，所以{who.zh}{result_zh}。"


def _sequence(rng: random.Random) -> Phrase:
    """In the evening, Tom usually walks the dog before reading the newspaper."""
    who, (time, time_zh) = rng.choice(TELLABLE), rng.choice(WORDS["routine_times"])
    one, other = rng.sample(WORDS["routines"], 2)
    order, order_zh = rng.choice((("before", f"{other[1]}之前"), ("after", f"{other[2]}之后")))
    english = f"{time}, {who.en} usually {who.present(one[0])} {order} {_gerund(other[0])}."
    return english, f"{time_zh}，{who.zh}通常在{order_zh}{one[1]}。"


def _request(rng: random.Random) -> Phrase:
    """Please bring Tom two books tomorrow."""
    friend, (time, time_zh), noun = rng.choice(TELLABLE), rng.choice(WORDS["future_times"]), rng.choice(GOODS)
    verb, verb_zh = rng.choice((("bring", "带"), ("buy", "买")))
    things, things_zh = _counted(noun, rng.randint(1, MOST_COUNTED[noun.group]))
    wish, wish_zh = f"{verb} {friend.object} {things} {time}", f"给{friend.zh}{verb_zh}{things_zh}"
    if rng.random() < 0.5:
        return f"please {wish}.", f"请{time_zh}{wish_zh}。"
    return f"could you {wish}?", f"你{time_zh}能{wish_zh}吗？"


def _arrangement(rng: random.Random) -> Phrase:
    """Let's meet Tom at the airport at half past three tomorrow afternoon."""
    (day, day_zh), (part, part_zh, earliest, latest) = rng.choice(WORDS["clock_days"]), rng.choice(WORDS["day_parts"])
    (hour, hour_zh), (clock, clock_zh) = (
        WORDS["numbers"][rng.randint(int(earliest), int(latest))],
        rng.choice(WORDS["minutes"]),
    )
    time, time_zh = f"at {clock.format(hour)} {day} {part}", f"{day_zh}{part_zh}{clock_zh.format(hour_zh)}"
    who, friend = _two_people(rng)
    if rng.random() < 0.6 and friend.pronoun not in {"I", "you", "we"}:
        place, place_zh = rng.choice(WORDS["meeting_places"])
        return f"let's meet {friend.object} {place} {time}.", f"我们{time_zh}{place_zh}和{friend.zh}见面吧。"
    return f"{who.en} will call {friend.object} {time}.", f"{who.zh}{time_zh}会给{friend.zh}打电话。"


PATTERNS: tuple[Callable[[random.Random], Phrase], ...] = (
    lambda rng: _scene(rng, TELLABLE, "statements"),  # Tom read a book in the library yesterday.
    lambda rng: _scene(rng, ASKABLE, "questions"),  # Did Tom read a book in the library yesterday?
    lambda rng: _scene(rng, TELLABLE, "negations"),  # Tom did not swim at the beach yesterday.
    *(_condition, _taste, _purchase, _weather, _travel, _comparison),
    *(_wish, _existence, _reason, _sequence, _request, _arrangement),
)


def generate_pairs(count: int, *, seed: int = 0) -> list[Phrase]:
    """Draws up to MAX_PAIRS English-Chinese pairs without repeated sentences; a smaller count gives a prefix."""
    if not 1 <= count <= MAX_PAIRS:
        raise ValueError(f"count is {count}, expected 1 to {MAX_PAIRS} sentence pairs")
    rng = random.Random(seed)
    pairs: list[Phrase] = []
    seen: set[str] = set()
    while len(pairs) < count:
        english, chinese = rng.choice(PATTERNS)(rng)
        english = english[0].upper() + english[1:]
        if english not in seen and chinese not in seen:
            seen.update((english, chinese))
            pairs.append((english, chinese))
    return pairs
